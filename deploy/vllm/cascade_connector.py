"""CascadeConnector: a KV connector for stock vLLM, by which a request's KV goes to another engine over Cascade's
transports.

    CASCADE_KV_DIR=/run/cascade/gpu0 PYTHONPATH=<the folder of this file> vllm serve ... --kv-transfer-config
      '{"kv_connector": "CascadeConnector", "kv_connector_module_path": "cascade_connector", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"staging_mib": 1024}}'

The engine listens on $CASCADE_KV_DIR/kv.sock, to which the Cascade migrator beside it connects; the directory must
belong to the user of both, with mode 0700. engine/api in Cascade's repository is the specification of what
they say to each other. The connector never trusts what it did not ask for: whatever goes wrong, vLLM computes the KV
itself.

A request with kv_transfer_params {"do_remote_decode": true} is answered with parameters that name its KV by a random
handle. The engine's next step copies the blocks into staging memory, which the migrator has mapped, and frees them: it
is the migrator that keeps the copy, for a lease, and gives it to one other replica. A request with such parameters
waits while the migrator brings the blocks into this engine's staging memory, verified, and they are copied from there.

vLLM runs one instance of the class in the scheduler and one in the worker, maybe in two processes. The worker has the
socket. A file, session.json, tells the scheduler whether a migrator is connected.
"""

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import re
import selectors
import socket
import stat
import struct
import threading
import time
import zlib
from array import array
from dataclasses import dataclass, field

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.request import RequestStatus

logger = init_logger("vllm.cascade_connector")

NAME = "CascadeConnector"
VERSION = 2  # of the protocol
MAX_FRAME = 16 << 20  # bytes
MAX_NAME = 256  # bytes of a replica's name
HELLO_SECONDS = 5.0  # for a migrator's first frame
SEND_SECONDS = 5.0  # without progress, while frames wait to be sent
FETCH_SECONDS = 12.0  # for the migrator to fetch KV; it gives up before
DEFAULT_STAGING_MIB = 1024
MAX_CONNECTIONS = 8
MAX_UNSENT = 16 << 20  # bytes of frames that wait to be sent on one connection


class ConfigurationError(ValueError):
    """What the connector cannot work with; it ends the engine when it starts."""


# What the two sides of the connector have in common.


def check_configuration(config, kv_cache_config):
    """Raises a ConfigurationError for an engine whose KV this connector cannot hand over."""
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    for name in (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "decode_context_parallel_size", "prefill_context_parallel_size",
    ):
        if getattr(parallel, name, 1) != 1:
            raise ConfigurationError(f"{NAME}: {name} is {getattr(parallel, name)}, but only 1 is supported")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConfigurationError(
            f"{NAME}: the model has {len(kv_cache_config.kv_cache_groups)} KV cache groups, but only one is supported: "
            "use NixlConnector, or --disable-hybrid-kv-cache-manager if the model runs with it")
    if transfer.kv_role != "kv_both":
        raise ConfigurationError(f'{NAME}: kv_role is {transfer.kv_role!r}: set "kv_role": "kv_both"')
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigurationError(
            f'{NAME}: set "kv_load_failure_policy": "recompute": otherwise requests fail whose KV does not arrive')


def compute_fingerprint(config, kv_cache_config):
    """Names everything that engines must have in common to compute equal bytes for a block."""
    group = kv_cache_config.kv_cache_groups[0]
    model, attention = config.model_config, getattr(config, "attention_config", None)
    parts = [
        vllm_version, model.model, model.revision, model.dtype, model.quantization, config.cache_config.cache_dtype,
        type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, group.kv_cache_spec.page_size_bytes,
        len(group.layer_names), current_platform.device_type, getattr(attention, "backend", None),
        getattr(model, "hf_overrides", None),  # such as the scaling of positions
    ]
    if scales_by_length(model):
        parts.append(model.max_model_len)
    return "vllm " + hashlib.sha256(repr([str(p) for p in parts]).encode()).hexdigest()


def scales_by_length(model):
    """Tells whether max_model_len decides by which factors positions are scaled (LongRoPE)."""
    config = getattr(model, "hf_text_config", None)
    scaling = repr([getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")])
    return "'longrope'" in scaling or "'su'" in scaling  # its old name


def compute_digest(fingerprint, adapter, salt, ids):
    """Returns the digest of everything that the KV of token ids depends on (Digest in engine/api)."""
    h = hashlib.sha256()
    for text in (fingerprint, adapter, salt):
        b = text.encode(errors="surrogatepass")  # a client's salt may be no valid text
        h.update(struct.pack("<I", len(b)) + b)
    h.update(array("I", ids).tobytes())
    return h.hexdigest()


def socket_directory():
    """Returns the directory of the socket."""
    path = os.environ.get("CASCADE_KV_DIR", "")
    if not path:
        raise ConfigurationError(
            f"{NAME}: set CASCADE_KV_DIR to a directory of this user with mode 0700: "
            "replicas[].connector of the fleet file")
    return path


def is_handle(value):
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def is_name(value):
    return isinstance(value, str) and 0 < len(value.encode(errors="surrogatepass")) <= MAX_NAME


def session_file(path):
    return os.path.join(path, "session.json")


@dataclass
class Offer:
    """KV that a finished request hands over."""

    request: str
    handle: str
    digest: str
    blocks: list[int]


@dataclass
class Fetch:
    """KV that a request waits for: the blocks of an offer from first on, to be written to these of this engine."""

    request: str
    holder: str
    handle: str
    digest: str
    first: int
    blocks: list[int]


@dataclass
class Metadata(KVConnectorMetadata):
    """What the scheduler's side tells the worker's in one step."""

    offers: list[Offer] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)


class CascadeConnector(KVConnectorBase_V1):
    """The class that vLLM makes; it is one of the two sides."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        check_configuration(vllm_config, kv_cache_config)
        side = Scheduler if role == KVConnectorRole.SCHEDULER else Worker
        self.side = side(vllm_config, kv_cache_config)

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.side.count_remote(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.side.begin_fetch(request, blocks, num_external_tokens)

    def request_finished(self, request, block_ids):
        return self.side.begin_offer(request, block_ids)

    def build_connector_meta(self, scheduler_output):
        return self.side.take_metadata()

    # The worker's side.

    def register_kv_caches(self, kv_caches):
        self.side.serve(kv_caches)

    def get_finished(self, finished_req_ids):
        metadata = self._get_connector_metadata() if self.has_connector_metadata() else Metadata()
        return self.side.step(metadata)

    def get_block_ids_with_load_errors(self):
        return self.side.take_invalid_blocks()

    def shutdown(self):
        self.side.stop()

    # All transfers are between steps.

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass


class Scheduler:
    """The scheduler's side: it decides which requests hand KV over and which wait for some."""

    def __init__(self, config, kv_cache_config):
        self.block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self.fingerprint = compute_fingerprint(config, kv_cache_config)
        self.path = session_file(socket_directory())
        self.known = None  # the session file's identity when it was read last
        self.replica = None
        self.metadata = Metadata()

    def connected_replica(self):
        """Returns the replica of the migrator that is connected, or None."""
        try:
            s = os.stat(self.path)
            known = (s.st_ino, s.st_mtime_ns)
            if known != self.known:
                with open(self.path) as f:
                    self.replica = json.load(f)["replica"]
                self.known = known
        except (OSError, ValueError, KeyError, TypeError):
            self.known, self.replica = None, None
        return self.replica

    def digest_of(self, request, ids):
        adapter = request.lora_request.lora_name if request.lora_request else ""
        return compute_digest(self.fingerprint, adapter, request.cache_salt or "", ids)

    def count_remote(self, request, computed):
        """Returns how many tokens after the computed ones are fetched, and whether between steps."""
        p = request.kv_transfer_params
        if not p or not p.get("do_remote_prefill") or self.connected_replica() is None:
            return 0, False
        n = request.num_tokens
        if (
            p.get("kv_connector") != NAME
            or not is_handle(p.get("cascade_handle"))  # a client may have made them up: a frame
            or not is_name(p.get("cascade_holder"))  # with them would end the migrator's connection
            or p.get("remote_num_tokens") != n  # the KV of another text, or of a part
            or request.prompt_token_ids is None
            or request.mm_features
            or computed >= n
        ):
            return 0, False
        return n - computed, True

    def begin_fetch(self, request, blocks, external):
        p = request.kv_transfer_params
        if not p or not p.get("do_remote_prefill"):
            return
        p["do_remote_prefill"] = False  # once, also if it is called again or the request is preempted
        if external <= 0:
            return
        n = request.num_tokens
        first, last = (n - external) // self.block_size, -(-n // self.block_size)
        self.metadata.fetches.append(Fetch(
            request.request_id, p["cascade_holder"], p["cascade_handle"], self.digest_of(request, list(request.all_token_ids)),
            first, list(blocks.get_block_ids()[0][first:last])))

    def begin_offer(self, request, blocks):
        """Returns whether the blocks must be kept until the worker has copied them, and the answer's parameters."""
        p = request.kv_transfer_params
        if not p or not p.get("do_remote_decode"):
            return False, None
        if request.status not in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED):
            return False, None
        replica, n = self.connected_replica(), request.num_computed_tokens
        count = -(-n // self.block_size)
        if replica is None or n == 0 or len(blocks) < count or request.prompt_token_ids is None or request.mm_features:
            return False, None
        handle = os.urandom(16).hex()
        self.metadata.offers.append(Offer(
            request.request_id, handle, self.digest_of(request, list(request.all_token_ids)[:n]), list(blocks[:count])))
        return True, {
            "do_remote_prefill": True, "do_remote_decode": False, "kv_connector": NAME,
            "cascade_handle": handle, "cascade_holder": replica, "remote_num_tokens": n,
        }

    def take_metadata(self):
        taken, self.metadata = self.metadata, Metadata()
        return taken

    def stop(self):
        pass


class Worker:
    """The worker's side: it copies blocks, and has the socket. Its methods are called by the engine's thread."""

    def __init__(self, config, kv_cache_config):
        self.num_blocks = kv_cache_config.num_blocks
        self.fingerprint = compute_fingerprint(config, kv_cache_config)
        extra = config.kv_transfer_config.kv_connector_extra_config or {}
        self.staging_bytes = int(extra.get("staging_mib", DEFAULT_STAGING_MIB)) << 20
        self.dir = socket_directory()
        self.layers = []  # tensors whose first dimension is the block
        self.slot_bytes = 0  # of a block, all layers together
        self.server = None
        self.waiting = []  # (fetch, its ticket) that have not ended
        self.invalid = set()  # blocks that were not loaded, not yet reported

    def serve(self, kv_caches):
        """Takes over the KV cache, and opens the socket."""
        for name, cache in kv_caches.items():
            if not isinstance(cache, torch.Tensor) or cache.shape[0] != self.num_blocks:
                shape = tuple(cache.shape) if isinstance(cache, torch.Tensor) else type(cache).__name__
                raise ConfigurationError(
                    f"{NAME}: the KV cache of {name} has the shape {shape}, but its first dimension should be the "
                    f"{self.num_blocks} blocks: this attention backend or version of vLLM is not supported")
            self.layers.append(cache)
        self.slot_bytes = sum(c[0].numel() * c.element_size() for c in self.layers)
        slots = self.staging_bytes // self.slot_bytes
        if slots < 1:
            raise ConfigurationError(
                f"{NAME}: staging_mib is too small for a block of {self.slot_bytes} bytes: raise it in "
                "kv_connector_extra_config")
        self.server = Server(self.dir, self.fingerprint, slots, self.slot_bytes)
        self.server.start()

    def stop(self):
        if self.server is not None:
            self.server.stop()

    def step(self, metadata):
        """Does what a step is to do, and returns the requests whose blocks were copied out, and into."""
        sent, received = set(), set()
        for offer in metadata.offers:
            try:
                self.copy_out(offer)
            except Exception as e:  # the other engine computes the KV
                logger.warning("KV of %s not handed over: %s", offer.request, e)
            sent.add(offer.request)
        for fetch in metadata.fetches:
            try:
                ticket = self.server.fetch(fetch)
            except Exception as e:
                ticket = Ticket(error=str(e))
            self.waiting.append((fetch, ticket))
        still = []
        for fetch, ticket in self.waiting:
            if ticket.is_pending():
                still.append((fetch, ticket))
                continue
            try:
                self.copy_in(fetch, ticket)
            except Exception as e:
                logger.warning("KV of %s not received; it is computed: %s", fetch.request, e)
                self.invalid.update(fetch.blocks)
            received.add(fetch.request)
        self.waiting = still
        return sent or None, received or None

    def take_invalid_blocks(self):
        taken, self.invalid = self.invalid, set()
        return taken

    def copy_out(self, offer):
        """Copies blocks into staging memory and offers them."""
        session = self.server.current
        if session is None:
            raise RuntimeError("the migrator has gone")
        slots = session.take(len(offer.blocks))
        if slots is None:
            session.send({"offer": {"handle": offer.handle, "error": "the staging memory is full"}})
            raise RuntimeError("the staging memory is full: raise staging_mib")
        try:
            at, index = 0, torch.tensor(slots)
            for cache in self.layers:
                block = cache[offer.blocks].contiguous().cpu().view(len(slots), -1).view(torch.uint8)
                session.memory[index, at:at + block.shape[1]] = block
                at += block.shape[1]
            session.offer(offer, slots, [zlib.crc32(session.memory[s].numpy()) for s in slots])
        except Exception:
            session.withdraw(offer, slots)
            raise

    def copy_in(self, fetch, ticket):
        """Copies what was fetched from staging memory into blocks."""
        slots = ticket.take_slots()
        try:
            at, index = 0, torch.tensor(slots)
            for cache in self.layers:
                size = cache[0].numel() * cache.element_size()
                block = ticket.session.memory[index, at:at + size].contiguous().view(cache.dtype)
                cache[fetch.blocks] = block.view(len(slots), *cache.shape[1:]).to(cache.device)
                at += size
        finally:
            ticket.session.give_back(slots)


class Ticket:
    """A fetch that the migrator executes. The engine's thread polls it."""

    def __init__(self, session=None, slots=(), error=None):
        self.session, self.slots, self.error = session, list(slots), error
        self.done, self.given_up = error is not None, False  # guarded by the session's lock
        self.deadline = time.monotonic() + FETCH_SECONDS

    def is_pending(self):
        return not self.done and time.monotonic() < self.deadline

    def take_slots(self):
        """Returns the slots with the blocks, or raises the reason why they are not there."""
        if self.session is None:
            raise RuntimeError(self.error)
        with self.session.lock:
            if not self.done:  # the migrator may still write to the slots: they come back with its answer
                self.given_up = True
                raise RuntimeError(f"the migrator did not fetch it within {FETCH_SECONDS:.0f} s")
            if self.error is not None:
                raise RuntimeError(self.error)
            return self.slots


class Session:
    """One connection of a migrator, with its staging memory.

    The lock guards free, offers, fetches and unsent: the engine's thread takes slots and adds frames, and never waits
    for the migrator; the server's thread gives slots back and sends. wake wakes the server's thread.
    """

    def __init__(self, conn, hello, slots, slot_bytes, wake):
        self.conn, self.replica, self.incarnation, self.wake = conn, hello["replica"], hello["incarnation"], wake
        self.lock = threading.Lock()
        self.free, self.offers, self.fetches, self.last = list(range(slots)), {}, {}, 0
        self.unsent, self.progress = bytearray(), time.monotonic()  # progress: when unsent began, or became shorter
        self.closed = False
        self.fd = os.memfd_create("cascade-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, slots * slot_bytes)
            # F_ADD_SEALS: the migrator must not be able to take the memory away.
            fcntl.fcntl(self.fd, 1033, 1 | 2 | 4)
            memory = mmap.mmap(self.fd, slots * slot_bytes)
            self.memory = torch.frombuffer(memory, dtype=torch.uint8).view(slots, slot_bytes)
        except Exception:  # the migrator tries again, every time with a new descriptor
            os.close(self.fd)
            raise

    def take(self, count):
        """Takes free slots; None if there are too few."""
        with self.lock:
            if self.closed or count > len(self.free):
                return None
            taken, self.free = self.free[len(self.free) - count:], self.free[:len(self.free) - count]
            return taken

    def give_back(self, slots):
        with self.lock:
            self.free.extend(slots)

    def offer(self, offer, slots, sums):
        with self.lock:
            self.offers[offer.handle] = slots
        self.send({"offer": {"handle": offer.handle, "digest": offer.digest, "blocks": slots, "sums": sums}})

    def withdraw(self, offer, slots):
        """Takes back an offer that was not sent."""
        with self.lock:
            self.offers.pop(offer.handle, None)
            self.free.extend(slots)

    def fetch(self, fetch):
        slots = self.take(len(fetch.blocks))
        if slots is None:
            return Ticket(error="the staging memory is full: raise staging_mib")
        ticket = Ticket(self, slots)
        with self.lock:
            self.last += 1
            number = self.last
            self.fetches[number] = ticket
        try:
            self.send({"fetch": {
                "id": number, "holder": fetch.holder, "handle": fetch.handle, "digest": fetch.digest,
                "first": fetch.first, "blocks": slots}})
        except (OSError, ValueError) as e:  # the migrator will not have the frame
            with self.lock:
                if self.fetches.pop(number, None) is not None:
                    self.free.extend(slots)
                ticket.error, ticket.done = str(e), True
        return ticket

    def handle(self, frame):
        """Handles a frame of the migrator. It raises what ends the connection."""
        if "released" in frame:
            with self.lock:
                self.free.extend(self.offers.pop(frame["released"]["handle"], ()))
            return
        if "fetched" not in frame:
            raise ValueError(f"unexpected frame {list(frame)[:1]}")
        with self.lock:
            ticket = self.fetches.pop(frame["fetched"]["id"])
            ticket.error, ticket.done = frame["fetched"].get("error") or None, True
            if ticket.error is not None or ticket.given_up:
                self.free.extend(ticket.slots)

    def welcome(self, fingerprint, slots, slot_bytes):
        """Sends the first frame, with the memory. It raises an error if the connection's buffer does not hold it."""
        data = encode({"welcome": {
            "version": VERSION, "fingerprint": fingerprint, "ranks": 1, "blocks": slots,
            "handles": [{"kind": "memfd", "bytes": slots * slot_bytes}],
            "regions": [{"handle": 0, "rank": 0, "offset": 0, "stride": slot_bytes, "bytes": slot_bytes}]}})
        if socket.send_fds(self.conn, [data], [self.fd]) < len(data):
            raise BlockingIOError("the first frame does not fit")

    def send(self, frame):
        """Leaves a frame to the server's thread. It raises an error if the frame will not be sent."""
        data = encode(frame)
        with self.lock:
            if self.closed:
                raise ConnectionError("the migrator's connection has ended")
            if len(self.unsent) + len(data) > MAX_UNSENT:
                raise ValueError(f"the migrator has not read {len(self.unsent)} bytes")
            if not self.unsent:
                self.progress = time.monotonic()
            self.unsent += data
        self.wake()

    def flush(self):
        """Sends as much as the connection takes. The server's thread calls it."""
        with self.lock:
            if self.unsent:
                with contextlib.suppress(BlockingIOError):
                    del self.unsent[:self.conn.send(self.unsent)]
                    self.progress = time.monotonic()

    def has_unsent(self):
        with self.lock:
            return bool(self.unsent)

    def is_stalled(self):
        """Tells whether the migrator reads nothing of what it was sent."""
        with self.lock:
            return bool(self.unsent) and time.monotonic() > self.progress + SEND_SECONDS

    def close(self):
        with self.lock:
            self.closed = True
            for ticket in self.fetches.values():
                ticket.error, ticket.done = "the migrator's connection has ended", True
            self.fetches = {}
        with contextlib.suppress(OSError):
            self.conn.close()
        os.close(self.fd)


def encode(frame):
    """Returns the bytes of a frame."""
    body = json.dumps(frame).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes")
    return struct.pack(">I", len(body)) + body


class Connection:
    """The receiving end of a connection: bytes become frames."""

    def __init__(self, conn):
        self.conn, self.buffer, self.session = conn, bytearray(), None
        self.deadline = time.monotonic() + HELLO_SECONDS

    def receive(self):
        """Reads what is there and returns the complete frames. It raises what ends the connection."""
        data = self.conn.recv(1 << 16)
        if not data:
            raise EOFError("closed")
        self.buffer += data
        frames = []
        while len(self.buffer) >= 4:
            (size,) = struct.unpack_from(">I", self.buffer)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes")
            if len(self.buffer) < 4 + size:
                break
            frame = json.loads(bytes(self.buffer[4:4 + size]))
            if not isinstance(frame, dict):
                raise ValueError("a frame that is no object")
            frames.append(frame)
            del self.buffer[:4 + size]
        return frames


class Server(threading.Thread):
    """The socket, with a thread of its own: an idle engine runs no steps. Only this thread changes current."""

    def __init__(self, path, fingerprint, slots, slot_bytes):
        super().__init__(name="cascade-connector", daemon=True)
        self.dir, self.fingerprint, self.slots, self.slot_bytes = path, fingerprint, slots, slot_bytes
        self.current = None  # the session of the latest migrator
        os.makedirs(path, mode=0o700, exist_ok=True)
        s = os.lstat(path)
        if not stat.S_ISDIR(s.st_mode) or s.st_mode & 0o077 or s.st_uid != os.geteuid():
            raise ConfigurationError(f"{NAME}: {path} must be a directory of this user with mode 0700")
        self.path = os.path.join(path, "kv.sock")
        self.remove_stale()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self.listener.listen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.waker, self.woken = socket.socketpair()
        self.waker.setblocking(False)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def remove_stale(self):
        """Removes what an engine has left that was killed. It raises an error if the engine lives."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(self.path)
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            else:
                raise ConfigurationError(f"{NAME}: another engine serves {self.path}; use a directory per engine")
        for name in (self.path, session_file(self.dir)):
            if os.path.lexists(name):
                os.remove(name)

    def fetch(self, fetch):
        session = self.current
        return session.fetch(fetch) if session else Ticket(error="no migrator is connected")

    def stop(self):
        self.waker.close()
        self.join(SEND_SECONDS)

    def wake(self):
        """Makes the thread send what waits. Any thread may call it."""
        with contextlib.suppress(OSError):  # it has been woken often enough, or has stopped
            self.waker.send(b"w")

    def run(self):
        try:
            while self.serve_events():
                pass
        except Exception:
            logger.exception("the socket %s has failed: from now on all KV is computed", self.path)
        finally:
            self.close()

    def serve_events(self):
        """Serves what has happened, or the passing of a second. It returns whether the server goes on."""
        for key, events in self.selector.select(timeout=1):
            if key.fileobj is self.woken:
                if not self.woken.recv(1 << 12):
                    return False
            elif key.fileobj is self.listener:
                self.accept()
            elif events & selectors.EVENT_READ:
                try:
                    for frame in key.data.receive():
                        self.handle(key.data, frame)
                except Exception as e:  # of this connection alone
                    self.drop(key.data, e)
        for key in list(self.selector.get_map().values()):
            if key.data is not None:
                self.attend(key.data)
        return True

    def attend(self, c):
        """Sends what waits on a connection, and ends one that keeps the engine waiting."""
        try:
            events = selectors.EVENT_READ
            if c.session is None:
                if time.monotonic() > c.deadline:
                    raise TimeoutError("no hello")
            else:
                c.session.flush()
                if c.session.is_stalled():
                    raise TimeoutError(f"nothing was read for {SEND_SECONDS:.0f} s")
                if c.session.has_unsent():
                    events |= selectors.EVENT_WRITE
            self.selector.modify(c.conn, events, c)
        except Exception as e:  # of this connection alone
            self.drop(c, e)

    def close(self):
        """Ends all connections and removes the socket."""
        for key in list(self.selector.get_map().values()):
            if key.data is not None:
                self.drop(key.data, "the engine stops")
        for opened in (self.listener, self.woken, self.selector):
            opened.close()
        with contextlib.suppress(OSError):
            os.remove(self.path)

    def accept(self):
        conn = None
        try:
            conn, _ = self.listener.accept()
            _, uid, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                raise PermissionError(f"it is of user {uid}")
            if len(self.selector.get_map()) >= MAX_CONNECTIONS:
                raise RuntimeError("there are too many connections")
            conn.setblocking(False)
            self.selector.register(conn, selectors.EVENT_READ, Connection(conn))
        except Exception as e:
            logger.warning("a connection to %s was not accepted: %s", self.path, e)
            if conn is not None:
                conn.close()
            else:
                time.sleep(0.1)  # out of descriptors, for instance

    def drop(self, c, why):
        self.selector.unregister(c.conn)
        if c.session is None:
            c.conn.close()
            return
        if self.current is c.session:
            self.current = None
            with contextlib.suppress(OSError):
                os.remove(session_file(self.dir))
        c.session.close()
        logger.info("migrator's connection ended: %s", why)

    def handle(self, c, frame):
        if c.session is not None:
            c.session.handle(frame)
            return
        hello = frame["hello"]
        if hello["version"] != VERSION:
            raise ValueError(f"version {hello['version']} of the protocol, but this side has {VERSION}")
        if not is_name(hello["replica"]) or not isinstance(hello["incarnation"], int):
            raise ValueError("invalid hello")
        old = self.current
        if old is not None and old.incarnation > hello["incarnation"]:
            raise ValueError("a later migrator is connected")
        c.session = Session(c.conn, hello, self.slots, self.slot_bytes, self.wake)
        if old is not None:
            with contextlib.suppress(OSError):
                old.conn.shutdown(socket.SHUT_RDWR)  # it ends when it is read
        self.current = c.session  # an offer may be made from now on; it is sent after the welcome
        temporary = session_file(self.dir) + ".new"
        with open(temporary, "w") as f:
            json.dump({"replica": c.session.replica}, f)
        os.rename(temporary, session_file(self.dir))
        c.session.welcome(self.fingerprint, self.slots, self.slot_bytes)
        logger.info("migrator of replica %s connected, %d slots of %d bytes", c.session.replica, self.slots, self.slot_bytes)
