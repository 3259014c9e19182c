"""Reads KV events with libzmq and vLLM's own types: kvevents.py listen|connect ENDPOINT REPLAY_ENDPOINT.

It prints "live", once a batch has come, and then every batch of a replay from the beginning as JSON. A batch that
vLLM would encode with other bytes is an error.
"""

import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch

END = b"\xff" * 8


def main(how, endpoint, replay_endpoint):
    sub = zmq.Context.instance().socket(zmq.SUB)
    sub.setsockopt(zmq.RCVTIMEO, 120_000)
    sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
    (sub.bind if how == "listen" else sub.connect)(endpoint)
    topic, live_seq, live = sub.recv_multipart()
    print("live", flush=True)
    replay = zmq.Context.instance().socket(zmq.DEALER)
    replay.setsockopt(zmq.RCVTIMEO, 120_000)
    replay.connect(replay_endpoint)
    replay.send_multipart((b"", (0).to_bytes(8, "big")))
    seen = {}
    while True:
        empty, name, seq, payload = replay.recv_multipart()
        assert empty == b"", empty
        if seq == END:
            assert (name, payload) == (b"", b""), (name, payload)
            break
        assert name == topic, (name, topic)
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        again = msgspec.msgpack.encode(batch)
        assert again == payload, (again, payload)
        assert int.from_bytes(seq, "big") == len(seen), seq
        seen[seq] = payload
        print(msgspec.json.encode(batch).decode(), flush=True)
    assert seen[live_seq] == live
    req = zmq.Context.instance().socket(zmq.REQ)
    req.setsockopt(zmq.RCVTIMEO, 120_000)
    req.connect(replay_endpoint)
    req.send((0).to_bytes(8, "big"))
    assert req.recv_multipart()[0] == topic


main(*sys.argv[1:])
