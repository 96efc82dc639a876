# SPDX-License-Identifier: Apache-2.0
"""Two processes that move one buffer by a peer's own library over tcp on loopback, and check what arrived.

Source and target are processes of their own. Every repetition sends fresh bytes; return codes and a digest of
the whole target are checked, because a queue that is full moves nothing and is very fast.
"""

import ctypes
import importlib.metadata
import mmap
import multiprocessing
import os
import time
import zlib


class Buffer:
    """Anonymous memory on huge pages, all of it touched."""

    def __init__(self, size):
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.size = size
        self.fill(0)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def fill(self, seed):
        block = os.urandom(1 << 20) if seed else bytes(1 << 20)
        for at in range(0, self.size, len(block)):
            self.memory[at : at + len(block)] = at.to_bytes(8, "little") + block[8:] if seed else block

    def digest(self):
        return zlib.crc32(self.memory)

    def pieces(self, piece):
        return [(self.address + at, min(piece, self.size - at)) for at in range(0, self.size, piece)]


class Nixl:
    """UCX over tcp, by NIXL. `tuned` has larger segments and socket buffers."""

    def __init__(self, tuned):
        os.environ.update({"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"})
        if tuned:
            os.environ.update(
                {
                    "UCX_TCP_TX_SEG_SIZE": "256K",
                    "UCX_TCP_RX_SEG_SIZE": "256K",
                    "UCX_TCP_SNDBUF": "4M",
                    "UCX_TCP_RCVBUF": "4M",
                }
            )

    def open(self, name, buffer):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([(buffer.address, buffer.size, 0, "")], "DRAM")
        return self.agent.get_agent_metadata()

    def write(self, peer, pieces, remote):
        if not hasattr(self, "remote"):
            self.remote = self.agent.add_remote_agent(peer)
        local = self.agent.get_xfer_descs([(at, size, 0) for at, size in pieces], "DRAM")
        theirs = self.agent.get_xfer_descs([(at, size, 0) for at, size in remote], "DRAM")
        begin = time.perf_counter()
        handle = self.agent.initialize_xfer("WRITE", local, theirs, self.remote, b"")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        took = time.perf_counter() - begin
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL's transfer ended as {state}")
        return took


class Mooncake:
    """Mooncake's transfer engine over tcp; batches that its queue holds."""

    BATCH = 256

    def __init__(self, _tuned):
        os.environ.update({"MC_FORCE_TCP": "true", "MC_TCP_BIND_ADDRESS": "127.0.0.1"})
        os.environ["MC_LOG_LEVEL"] = "ERROR"

    def open(self, _name, buffer):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        self.check(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self.check(self.engine.register_memory(buffer.address, buffer.size), "register_memory")
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def write(self, peer, pieces, remote):
        begin = time.perf_counter()
        for at in range(0, len(pieces), self.BATCH):
            mine, theirs = pieces[at : at + self.BATCH], remote[at : at + self.BATCH]
            code = self.engine.batch_transfer_sync_write(
                peer, [a for a, _ in mine], [a for a, _ in theirs], [size for _, size in mine]
            )
            self.check(code, "batch_transfer_sync_write")
        return time.perf_counter() - begin

    @staticmethod
    def check(code, what):
        if code != 0:
            raise RuntimeError(f"Mooncake's {what} returned {code}")


PEERS = {
    "NIXL": (Nixl, "nixl-cu12"),
    "Mooncake": (Mooncake, "mooncake-transfer-engine-non-cuda"),
}


def version(peer):
    return importlib.metadata.version(PEERS[peer][1])


def target_process(peer, tuned, size, pipe):
    buffer = Buffer(size)
    mover = PEERS[peer][0](tuned)
    pipe.send((mover.open("target", buffer), buffer.address))
    while pipe.recv() == "digest":
        pipe.send(buffer.digest())
        buffer.fill(0)
    os._exit(0)  # The library's threads don't end by themselves.


def source_process(peer, tuned, size, piece, pipe):
    """Answers each request with the seconds of one checked transfer, or with what went wrong."""
    near, far = multiprocessing.Pipe()
    child = multiprocessing.Process(target=target_process, args=(peer, tuned, size, far), daemon=True)
    child.start()
    far.close()
    buffer = Buffer(size)
    mover = PEERS[peer][0](tuned)
    try:
        mover.open("source", buffer)
        name, address = near.recv()
    except Exception as failure:  # A library it needs isn't there, say; the target ended for the same reason.
        pipe.send(f"{type(failure).__name__}: {failure}")
        os._exit(1)
    pieces = buffer.pieces(piece)
    remote = [(address + at - buffer.address, length) for at, length in pieces]
    pipe.send("ready")
    while pipe.recv() == "move":
        try:
            buffer.fill(1)
            took = mover.write(name, pieces, remote)
            near.send("digest")
            if near.recv() != buffer.digest():
                raise RuntimeError("the bytes that arrived aren't those that were sent")
            pipe.send(took)
        except Exception as failure:  # Told to the caller, whatever it is.
            pipe.send(str(failure))
    near.send("end")
    os._exit(0)


class Mover:
    """A peer's pair of processes. `seconds()` runs one checked transfer."""

    def __init__(self, peer, tuned, size, piece):
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=source_process, args=(peer, tuned, size, piece, far))
        self.process.start()
        far.close()
        answer = self.answer()
        if answer != "ready":
            raise RuntimeError(answer)

    def answer(self):
        if not self.pipe.poll(120):
            raise RuntimeError("no answer within 120 s")
        return self.pipe.recv()

    def seconds(self):
        self.pipe.send("move")
        answer = self.answer()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self):
        self.pipe.close()
        self.process.terminate()
        self.process.join(5)
