#!/usr/bin/env bash
# Build a real kube-apiserver (1.20.2) for the tests marked `kube` from Debian's source package, and fetch etcd with it.
# There is no binary of it in Debian or on PyPI; everything here comes from Debian bookworm alone.
#
#   tests/kube/build_apiserver.sh [FOLDER]     FOLDER/bin/{kube-apiserver,etcd}; nothing happens if both are there
#
# FOLDER is $HEADROOM_KUBE_CACHE, or else ~/.cache/headroom/kube. Needs apt-get and dpkg with bookworm in its sources; takes five to
# eight minutes on two cores and 1.7 GB below FOLDER, which is deleted at the end.
set -euo pipefail

folder=$(realpath -m "${1:-${HEADROOM_KUBE_CACHE:-$HOME/.cache/headroom/kube}}")
server=$folder/bin/kube-apiserver
etcd=$folder/bin/etcd
if [ -x "$server" ] && [ -x "$etcd" ]; then
    exit 0
fi
work=$folder/build
rm -rf "$work"
mkdir -p "$folder/bin" "$work/apt/sources" "$work/apt/lists/partial" "$work/apt/cache" "$work/source" "$work/packages" "$work/root"
trap 'rm -rf "$work"' EXIT

echo "fetching the sources of Kubernetes, Go and etcd from Debian"
# Lists of our own: those of the machine need not have source packages and must not change.
apt="apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$work/apt/sources
     -o Dir::State::lists=$work/apt/lists -o Dir::Cache=$work/apt/cache -o APT::Sandbox::User=root"
sed 's/^Types: .*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources > "$work/apt/sources/debian.sources"
$apt update
(cd "$work/source" && $apt source --download-only kubernetes && tar xzf kubernetes_*.orig.tar.gz)
(cd "$work/packages" && $apt download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server)
for package in "$work"/packages/*.deb; do
    dpkg -x "$package" "$work/root"
done

# Sources have to lie below a GOPATH: the source package is older than Go modules in Kubernetes' build.
kubernetes=$work/go/src/k8s.io/kubernetes
mkdir -p "$(dirname "$kubernetes")"
mv "$work"/source/kubernetes-1.20.2 "$kubernetes"
# reflect2 1.0.1, which is vendored, crashes when built with Go 1.18 or newer; 1.0.2 does not.
reflect2=$kubernetes/vendor/github.com/modern-go/reflect2
rm -rf "$reflect2"
cp -rL "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2" "$reflect2"
rm -f "$reflect2"/*_test.go

export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/cache GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0
PATH=$GOROOT/bin:$PATH
cd "$kubernetes"

echo "generating the OpenAPI definitions, which the source package leaves out"
go build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
tagged=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg vendor/k8s.io staging/src/k8s.io |
    grep -vE '_test\.go|/generators/|code-generator|sample-apiserver|/testdata/|kube-openapi/cmd' |
    sed 's|^staging/src/|vendor/|' | xargs -n1 dirname | sort -u | sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
"$work/openapi-gen" --logtostderr --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    --output-file-base zz_generated.openapi --output-package k8s.io/kubernetes/pkg/generated/openapi \
    --output-base "$work/go/src" --report-filename "$work/openapi.txt" --input-dirs "$tagged"

echo "building kube-apiserver"
base=k8s.io/kubernetes/vendor/k8s.io
go build -trimpath -tags providerless,dockerless -o "$work/kube-apiserver" -ldflags "-s -w \
    -X $base/component-base/version.gitMajor=1 -X $base/component-base/version.gitMinor=20 \
    -X $base/component-base/version.gitVersion=v1.20.2 -X $base/client-go/pkg/version.gitVersion=v1.20.2" \
    k8s.io/kubernetes/cmd/kube-apiserver

cp "$work/root/usr/bin/etcd" "$etcd"
mv "$work/kube-apiserver" "$server"
"$server" --version
