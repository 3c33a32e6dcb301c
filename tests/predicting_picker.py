"""The picker without a network, with the predicted-latency profile of llm-d's chart, after it has learned something."""

from envoy_messages import response_body, response_headers
from picker_in_memory import World

from epp.director import DirectorOptions
from epp.latency.predictor import Predictor, PredictorOptions
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG

TOKEN = b'data: {"choices":[{"text":"x"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":9}}\n\ndata: [DONE]\n\n'


def predicting_world(director: DirectorOptions | None = None) -> World:
    predictor = Predictor(PredictorOptions(ready_samples=5))
    world = World(PREDICTED_LATENCY_CONFIG, director=director, predictor=predictor)
    for _ in range(50):
        talk = world.post({"model": "m", "stream": True, "prompt": "x" * 400})
        talk.send(response_headers(200, {"content-type": "text/event-stream"}))
        world.clock.advance(0.1)
        talk.send(response_body(TOKEN, False))
        world.clock.advance(0.1)
        talk.send(response_body(TOKEN + USAGE, True))
        talk.close()
    return world
