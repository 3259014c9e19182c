"""Tests of cascade_connector.py without vLLM and PyTorch, in whose place it puts the few names that the script needs.

What copies tensors is tested by the tests of this package that run real engines."""

import contextlib
import json
import os
import socket
import struct
import sys
import tempfile
import time
import types
import unittest
from unittest import mock


class Memory:
    """Stands for a tensor over a buffer."""

    def __init__(self, buffer, dtype):
        self.buffer = buffer

    def view(self, *shape):
        return self


def add_module(name, **attributes):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(attributes)


add_module("torch", Tensor=type("Tensor", (), {}), uint8=None, frombuffer=Memory)
for name in ("vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
             "vllm.distributed.kv_transfer.kv_connector.v1", "vllm.v1"):
    add_module(name)
add_module("vllm", __version__="test")
add_module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorBase_V1=object, KVConnectorMetadata=object, KVConnectorRole=None)
add_module("vllm.logger", init_logger=lambda name: mock.Mock())
add_module("vllm.platforms", current_platform=None)
add_module("vllm.v1.request", RequestStatus=types.SimpleNamespace(FINISHED_LENGTH_CAPPED=1, FINISHED_STOPPED=2))

import cascade_connector as connector  # noqa: E402, after the modules that it imports

HANDLE = "00112233445566778899aabbccddeeff"
SLOTS, SLOT_BYTES = 4, 64


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it does not become true")
        time.sleep(0.001)


class SchedulerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        s = self.scheduler = connector.Scheduler.__new__(connector.Scheduler)  # without the configuration of an engine
        s.block_size, s.fingerprint, s.path = 16, "f", os.path.join(folder.name, "session.json")
        s.known = s.replica = None
        s.metadata = connector.Metadata()
        self.write_session('{"replica": "r0"}')

    def write_session(self, text):
        with open(self.scheduler.path + ".new", "w") as f:
            f.write(text)
        os.rename(self.scheduler.path + ".new", self.scheduler.path)

    def request(self, **fields):
        params = {"do_remote_prefill": True, "kv_connector": "CascadeConnector", "cascade_handle": HANDLE, "cascade_holder": "r1", "remote_num_tokens": 40}
        params.update(fields)
        return types.SimpleNamespace(
            request_id="q", kv_transfer_params=params, num_tokens=40, num_computed_tokens=40, prompt_token_ids=[1], all_token_ids=list(range(40)),
            mm_features=[], lora_request=None, cache_salt=None, status=1)

    def test_fetches_what_is_not_computed(self):
        q, blocks = self.request(), types.SimpleNamespace(get_block_ids=lambda: [[7, 8, 9]])
        self.assertEqual(self.scheduler.count_remote(q, 16), (24, True))
        self.scheduler.begin_fetch(q, blocks, 24)
        self.scheduler.begin_fetch(q, blocks, 24)
        (fetch,) = self.scheduler.take_metadata().fetches
        self.assertEqual((fetch.holder, fetch.handle, fetch.first, fetch.blocks), ("r1", HANDLE, 1, [8, 9]))
        self.assertEqual(fetch.digest, connector.compute_digest("f", "", "", range(40)))
        self.assertEqual(self.scheduler.count_remote(q, 16), (0, False))

    def test_fetches_from_the_block_that_is_computed_in_part(self):
        q, blocks = self.request(cascade_holder="r" * 256), types.SimpleNamespace(get_block_ids=lambda: [[7, 8, 9]])
        self.assertEqual(self.scheduler.count_remote(q, 20), (20, True))
        self.scheduler.begin_fetch(q, blocks, 20)
        (fetch,) = self.scheduler.take_metadata().fetches
        self.assertEqual((fetch.first, fetch.blocks), (1, [8, 9]))

    def test_computes_what_it_does_not_fetch(self):
        self.assertEqual(self.scheduler.count_remote(self.request(), 40), (0, False))  # nothing is left
        for name, value in (("prompt_token_ids", None), ("mm_features", ["an image"])):
            q = self.request()
            setattr(q, name, value)
            self.assertEqual(self.scheduler.count_remote(q, 0), (0, False), name)
        q = self.request()
        self.scheduler.begin_fetch(q, types.SimpleNamespace(get_block_ids=lambda: [[7, 8, 9]]), 0)
        self.assertEqual(self.scheduler.take_metadata().fetches, [])

    def test_computes_what_a_client_made_up(self):
        for name, values in {
            "cascade_handle": ["", "x", "é" * 32, HANDLE + "0", HANDLE.replace("0", "g"), HANDLE + "\n", 5, None, [HANDLE]],
            "cascade_holder": ["", "r" * 257, "é" * 129, "\ud800" * 100, 5, None, {}],
            "remote_num_tokens": [39, 41, None, "40", []],
            "kv_connector": ["NixlConnector", None],
        }.items():
            for value in values:
                self.assertEqual(self.scheduler.count_remote(self.request(**{name: value}), 0), (0, False), f"{name} {value!r}")

    def test_hands_over(self):
        q = self.request(do_remote_prefill=False, do_remote_decode=True)
        q.cache_salt = "\ud800"  # no valid text
        kept, params = self.scheduler.begin_offer(q, [7, 8, 9, 10])
        (offer,) = self.scheduler.take_metadata().offers
        self.assertTrue(kept)
        self.assertEqual((params["cascade_handle"], params["cascade_holder"], params["remote_num_tokens"]), (offer.handle, "r0", 40))
        self.assertEqual(offer.blocks, [7, 8, 9])
        q.num_computed_tokens = 39  # the last token has no KV yet
        self.scheduler.begin_offer(q, [7, 8, 9])
        (offer,) = self.scheduler.take_metadata().offers
        self.assertEqual(offer.digest, connector.compute_digest("f", "", "\ud800", range(39)))
        self.assertEqual(self.scheduler.begin_offer(q, [7, 8]), (False, None))  # too few blocks
        for name, value in (("num_computed_tokens", 0), ("prompt_token_ids", None), ("mm_features", ["an image"]), ("status", 3)):
            with mock.patch.object(q, name, value):
                self.assertEqual(self.scheduler.begin_offer(q, [7, 8, 9]), (False, None), name)

    def test_works_with_a_connected_migrator_only(self):
        for text in ("", "x", "[]", "5", "{}"):
            self.write_session(text)
            self.assertIsNone(self.scheduler.connected_replica(), text)
        self.write_session('{"replica": "r0"}')
        self.assertEqual(self.scheduler.connected_replica(), "r0")
        modified = os.stat(self.scheduler.path).st_mtime_ns
        self.write_session('{"replica": "r9"}')
        os.utime(self.scheduler.path, ns=(modified, modified))  # within one tick of the file system
        self.assertEqual(self.scheduler.connected_replica(), "r9")
        os.remove(self.scheduler.path)
        self.assertEqual(self.scheduler.count_remote(self.request(), 0), (0, False))
        self.assertEqual(self.scheduler.begin_offer(self.request(do_remote_decode=True), [1, 2, 3]), (False, None))

    def test_digest_is_that_of_the_protocol(self):  # TestDigest of engine/api
        self.assertEqual(connector.compute_digest("f", "lo", "", [1, 256]), "6dd3e874a11834e0afdde0aa0c2adc6fabf22fd372b1872e39039ee8b7d1fb34")


class FingerprintTest(unittest.TestCase):
    def fingerprint(self, longest, **scaling):
        model = types.SimpleNamespace(
            model="m", revision=None, dtype="float16", quantization=None, max_model_len=longest, hf_text_config=types.SimpleNamespace(**scaling))
        group = types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(block_size=16, page_size_bytes=64), layer_names=["a"])
        config = types.SimpleNamespace(model_config=model, cache_config=types.SimpleNamespace(cache_dtype="auto"))
        with mock.patch.object(connector, "current_platform", types.SimpleNamespace(device_type="cpu")):
            return connector.compute_fingerprint(config, types.SimpleNamespace(kv_cache_groups=[group]))

    def test_longest_context(self):
        long = {"rope_type": "longrope", "short_factor": [1.0]}
        for same, scaling in [
            (True, {}), (True, {"rope_parameters": {"rope_type": "yarn"}}), (True, {"rope_scaling": None}),
            (False, {"rope_parameters": long}), (False, {"rope_parameters": {"full_attention": long}}),
            (False, {"rope_scaling": {"type": "su"}}),
        ]:
            self.assertEqual(self.fingerprint(4096, **scaling) == self.fingerprint(8192, **scaling), same, scaling)


class ServerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = os.path.join(folder.name, "kv")
        self.server = connector.Server(self.dir, "f", SLOTS, SLOT_BYTES)
        self.server.start()
        self.addCleanup(self.server.stop)

    def dial(self):
        conn = socket.socket(socket.AF_UNIX)
        self.addCleanup(conn.close)
        conn.settimeout(30)
        conn.connect(self.server.path)
        return conn

    def hello(self, incarnation=1):
        conn = self.dial()
        self.send(conn, {"hello": {"version": 2, "replica": "r0", "incarnation": incarnation}})
        return conn

    def connect(self, incarnation=1):
        conn = self.hello(incarnation)
        self.assertEqual(self.read(conn)["welcome"], {
            "version": 2, "fingerprint": "f", "ranks": 1, "blocks": SLOTS, "handles": [{"kind": "memfd", "bytes": SLOTS * SLOT_BYTES}],
            "regions": [{"handle": 0, "rank": 0, "offset": 0, "stride": SLOT_BYTES, "bytes": SLOT_BYTES}]})
        return conn

    def send(self, conn, frame):
        body = json.dumps(frame).encode()
        conn.sendall(struct.pack(">I", len(body)) + body)

    def receive(self, conn, size):
        data = b""
        while len(data) < size:
            part = conn.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def read(self, conn):
        return json.loads(self.receive(conn, struct.unpack(">I", self.receive(conn, 4))[0]))

    def fetch(self, blocks):
        return self.server.fetch(connector.Fetch("q", "r1", HANDLE, "00" * 32, 0, blocks))

    def test_fetch_given_up_keeps_its_slots_until_the_answer(self):
        conn = self.connect()
        ticket = self.fetch([1, 2, 3])
        number = self.read(conn)["fetch"]["id"]
        self.assertTrue(ticket.is_pending())
        ticket.deadline = time.monotonic()
        self.assertFalse(ticket.is_pending())
        with self.assertRaisesRegex(RuntimeError, "did not fetch it"):
            ticket.take_slots()
        self.assertIn("full", self.fetch([1, 2]).error)
        self.send(conn, {"fetched": {"id": number}})
        wait_for(lambda: len(self.server.current.free) == SLOTS)

    def test_released_twice(self):
        conn = self.connect()
        session = self.server.current
        session.offer(connector.Offer("q", HANDLE, "00" * 32, [1, 2]), session.take(2), [0, 0])
        self.assertEqual(self.read(conn)["offer"]["handle"], HANDLE)
        for _ in range(2):
            self.send(conn, {"released": {"handle": HANDLE}})
        ticket = self.fetch([1, 2])
        self.send(conn, {"fetched": {"id": self.read(conn)["fetch"]["id"], "error": "gone"}})
        wait_for(lambda: not ticket.is_pending())
        self.assertEqual(sorted(session.free), list(range(SLOTS)))

    def test_failed_start_of_a_session_leaks_nothing(self):
        self.connect()
        before = len(os.listdir("/proc/self/fd"))
        for name in ("os.ftruncate", "fcntl.fcntl", "mmap.mmap"):
            with mock.patch(name, side_effect=OSError("no memory")):
                with self.hello(2) as conn, self.assertRaises(EOFError):
                    self.read(conn)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        self.connect(2)

    def test_no_hello(self):
        with mock.patch.object(connector, "HELLO_SECONDS", 0.0):
            self.assertEqual(self.dial().recv(1), b"")
        self.connect()

    def test_migrator_that_reads_nothing(self):
        conn = self.connect()
        session, texts = self.server.current, []
        for size in (1 << 20, 1 << 12, 1):
            with self.assertRaisesRegex(ValueError, "has not read"):  # instead of waiting until it does
                while True:
                    session.send({"offer": {"handle": HANDLE, "error": "x" * size}})
                    texts.append("x" * size)
        self.assertLessEqual(len(session.unsent), connector.MAX_UNSENT)
        ticket = self.fetch([1, 2])
        self.assertFalse(ticket.is_pending())
        self.assertEqual(len(session.free), SLOTS)
        for text in texts:
            self.assertEqual(self.read(conn)["offer"]["error"], text)
        self.assertTrue(self.fetch([1]).is_pending())
        self.assertIn("fetch", self.read(conn))

    def test_migrator_that_reads_nothing_for_too_long(self):
        conn = self.connect()
        session, ticket = self.server.current, self.fetch([1])
        self.read(conn)
        with mock.patch.object(connector, "SEND_SECONDS", 0.0):
            def fill():
                try:
                    session.send({"offer": {"handle": HANDLE, "error": "x" * (1 << 16)}})
                except ConnectionError:
                    pass  # it has just ended
                return not ticket.is_pending()
            wait_for(fill)
        self.assertIn("ended", ticket.error)
        self.assertIsNone(self.server.current)
        with self.assertRaises(ConnectionError):
            session.send({"offer": {"handle": HANDLE, "error": "late"}})
        self.assertIsNone(session.take(1))

    def test_migrator_that_reads_slowly(self):
        self.connect()
        session = self.server.current
        session.conn = mock.Mock(wraps=session.conn, send=lambda data: 1)
        with mock.patch.object(session, "wake"):
            session.progress -= 60  # it was idle
            session.send({"offer": {"handle": HANDLE, "error": "x" * (1 << 20)}})
        self.assertFalse(session.is_stalled())
        session.progress -= 60
        session.flush()
        self.assertTrue(session.has_unsent())
        self.assertFalse(session.is_stalled())

    def test_offer_taken_back(self):
        self.connect()
        session = self.server.current
        session.withdraw(connector.Offer("q", HANDLE, "00" * 32, [1, 2]), session.take(2))
        self.assertEqual(sorted(session.free), list(range(SLOTS)))

    def test_later_migrator(self):
        first = self.connect(2)
        with self.assertRaises(EOFError):
            self.read(self.hello(1))  # an earlier one
        again = self.connect(2)  # the same one once more
        with self.assertRaises(EOFError):
            self.read(first)
        wait_for(lambda: len(self.server.selector.get_map()) == 3)
        self.assertEqual((self.server.current.incarnation, sorted(os.listdir(self.dir))), (2, ["kv.sock", "session.json"]))
        self.send(again, {"released": {"handle": HANDLE}})
        self.assertTrue(self.fetch([1]).is_pending())

    def test_bad_first_frames(self):
        good = {"version": 2, "replica": "r0", "incarnation": 1}
        for bad in ({"version": 1}, {"replica": ""}, {"replica": 5}, {"replica": "r" * 257}, {"incarnation": "1"}):
            conn = self.dial()
            self.send(conn, {"hello": {**good, **bad}})
            self.assertEqual(conn.recv(1), b"", bad)
        with mock.patch.object(connector, "HELLO_SECONDS", 60):
            conn = self.dial()
            conn.sendall(struct.pack(">I", connector.MAX_FRAME + 1))
            self.assertEqual(conn.recv(1), b"")
        self.connect()

    @mock.patch.object(connector, "HELLO_SECONDS", 60)
    def test_too_many_connections(self):
        conns = [self.dial() for _ in range(connector.MAX_CONNECTIONS - 2)]  # besides the listener and what wakes the thread
        wait_for(lambda: len(self.server.selector.get_map()) == connector.MAX_CONNECTIONS)
        self.assertEqual(self.dial().recv(1), b"")
        conns[0].close()
        wait_for(lambda: len(self.server.selector.get_map()) < connector.MAX_CONNECTIONS)
        self.connect()

    def test_others_have_no_access(self):
        self.assertEqual(os.stat(self.server.path).st_mode & 0o777, 0o600)
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o750)
            with self.assertRaisesRegex(connector.ConfigurationError, "mode 0700"):
                connector.Server(folder, "f", SLOTS, SLOT_BYTES)

    def test_fetch_without_an_answer(self):
        conn = self.connect()
        worker = connector.Worker.__new__(connector.Worker)
        worker.server, worker.waiting, worker.invalid = self.server, [], set()
        fetch = connector.Fetch("q", "r1", HANDLE, "", 0, [5, 6])
        self.assertEqual(worker.step(connector.Metadata(fetches=[fetch])), (None, None))
        number = self.read(conn)["fetch"]["id"]
        with mock.patch.object(connector, "FETCH_SECONDS", 0.0):
            self.assertEqual(worker.step(connector.Metadata(fetches=[connector.Fetch("p", "r1", HANDLE, "", 0, [7])])), (None, {"p"}))
        self.assertEqual(worker.take_invalid_blocks(), {7})
        self.assertEqual([fetch.request for fetch, _ in worker.waiting], ["q"])
        self.send(conn, {"fetched": {"id": number, "error": "gone"}})
        wait_for(lambda: not worker.waiting[0][1].is_pending())
        self.assertEqual(worker.step(connector.Metadata()), (None, {"q"}))
        self.assertEqual(worker.take_invalid_blocks(), {5, 6})

    def test_client_of_another_user(self):
        with mock.patch("os.geteuid", return_value=os.geteuid() + 1):
            with self.assertRaises((EOFError, ConnectionError)):
                self.read(self.hello())
        self.connect()

    def test_failing_system_call(self):
        with mock.patch("struct.unpack", side_effect=OSError("SO_PEERCRED")):
            self.assertEqual(self.dial().recv(1), b"")
        self.connect()

    def test_engine_lives_without_the_thread(self):
        conn = self.connect()
        ticket = self.fetch([1])
        self.read(conn)
        with mock.patch.object(self.server, "serve_events", side_effect=RuntimeError("a defect")):
            with contextlib.suppress(BrokenPipeError):  # an earlier event may have ended the thread
                self.send(conn, {"released": {"handle": HANDLE}})
            self.server.join(30)
        self.assertFalse(self.server.is_alive())
        self.assertFalse(ticket.is_pending())
        self.assertEqual(self.fetch([1]).error, "no migrator is connected")
        self.assertEqual(os.listdir(self.dir), [])

    def test_step_survives_a_defect(self):
        worker = connector.Worker.__new__(connector.Worker)
        worker.server, worker.waiting, worker.invalid = self.server, [], set()
        with mock.patch.object(self.server, "fetch", side_effect=RuntimeError("a defect")):
            fetch = connector.Fetch("q", "r1", HANDLE, "", 0, [5, 6])
            self.assertEqual(worker.step(connector.Metadata(fetches=[fetch])), (None, {"q"}))
        self.assertEqual(worker.take_invalid_blocks(), {5, 6})
        offer = connector.Offer("p", HANDLE, "", [5])
        self.assertEqual(worker.step(connector.Metadata(offers=[offer])), ({"p"}, None))


unittest.main()
