# SPDX-License-Identifier: Apache-2.0
"""A wire between two processes that can be cut, swallow everything, or turn one bit. Of tcp and of shm."""

import contextlib
import os
import secrets
import socket
import struct
import threading

HEADER = struct.Struct("<IBBHQ")  # Of a frame on a channel: magic, type, flags, immediate bytes, length.
PLACE = struct.Struct("<IQQ")  # Ends the immediate of a shm data frame: segment, offset, bytes.
CONTROL, DATA, FENCE = 1, 2, 3
TO_PRODUCER, TO_CONSUMER = "to producer", "to consumer"


def close(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def is_local(address):
    return "/" in address


def connect(address):
    if is_local(address):
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(5)
        end.connect("\0isthmus/" + address.split("/")[1])
    else:
        host, port = address.split(":")
        end = socket.create_connection((host, int(port)), timeout=5)
    end.settimeout(None)
    return end


def listen_beside(address):
    """A listener of the same kind, and its address, which is as long."""
    if is_local(address):
        host, name = address.split("/")
        own = secrets.token_hex(len(name) // 2)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0isthmus/" + own)
        listener.listen(64)
        return listener, f"{host}/{own}"
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return listener, "127.0.0.1:%d" % listener.getsockname()[1]


class Relay:
    """Listens on an address of its own and passes everything on to `target`. Any thread."""

    def __init__(self, target):
        self.target = target
        self.listener, self.address = listen_beside(target)
        self.lock = threading.Lock()
        self.pairs = set()  # Of the two ends of each connection.
        self.swallowed = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = connect(self.target)
            except OSError:
                close(near)
                continue
            pair = (near, far)
            if not is_local(self.target):
                for end in pair:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs.add(pair)
            for source, sink, direction in ((near, far, TO_PRODUCER), (far, near, TO_CONSUMER)):
                threading.Thread(target=self._run, args=(pair, source, sink, direction), daemon=True).start()

    def _run(self, pair, source, sink, direction):
        with contextlib.suppress(OSError):
            self.carry(pair, source, sink, direction)
        with self.lock:
            if pair in self.swallowed:
                return  # A black hole doesn't pass an end on either.
            is_reset = pair not in self.pairs
            self.pairs.discard(pair)
        for end in pair:
            end.close() if is_reset else close(end)

    def carry(self, pair, source, sink, direction):
        while data := source.recv(1 << 18):
            self.deliver(pair, sink, self.change(data))

    def change(self, data):
        return data

    def deliver(self, pair, sink, data, files=()):
        with self.lock:
            is_swallowed = pair in self.swallowed
        if not is_swallowed and files:
            data = data[socket.send_fds(sink, [data], files) :]
        if not is_swallowed:
            sink.sendall(data)

    def reset(self):
        """Both ends see their connection reset."""
        with self.lock:
            pairs, self.pairs = self.pairs - self.swallowed, set(self.swallowed)
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RD)  # Wakes its reader, which holds the descriptor.
                end.close()

    def swallow(self):
        """Nothing crosses the connections that there are any more; nobody is told. New ones work."""
        with self.lock:
            self.swallowed |= self.pairs

    def heal(self):
        with self.lock:
            pairs, self.swallowed = self.swallowed, set()
            self.pairs -= pairs
        for pair in pairs:
            for end in pair:
                close(end)

    def close(self):
        close(self.listener)
        self.heal()
        self.reset()


class HttpRelay(Relay):
    """In front of a producer: where it names an own address consumers are told another of equal length."""

    def __init__(self, target):
        self.told = {}
        self.is_direct = False  # They are told the own ones.
        super().__init__(target)

    def change(self, data):
        for own, told in {} if self.is_direct else self.told.items():
            assert len(own) == len(told), f"{own} and {told}"
            data = data.replace(own.encode(), told.encode())
        return data


class FrameRelay(Relay):
    """Between two agents: knows frames, so that one bit of a chosen one can be turned."""

    def __init__(self, target):
        self.wanted = None  # (frame type, direction) of the next frame to be changed.
        super().__init__(target)

    def corrupt(self, kind, direction):
        with self.lock:
            self.wanted = (kind, direction)

    def has_corrupted(self):
        with self.lock:
            return self.wanted is None

    def carry(self, pair, source, sink, direction):
        received, files, segments = bytearray(), [], []

        def take(count):
            while len(received) < count:
                data, passed, _, _ = socket.recv_fds(source, 1 << 18, 16)
                if not data:
                    raise OSError("the end")
                received.extend(data)
                files.extend(passed)
            taken = received[:count]
            del received[:count]
            return taken

        try:
            while True:
                header = take(HEADER.size)
                _, kind, _, immediate, length = HEADER.unpack(header)
                body = take(immediate + (0 if kind == FENCE else length))
                with self.lock:
                    is_wanted = self.wanted == (kind, direction) and pair not in self.swallowed
                    if is_wanted:
                        self.wanted = None
                segments.extend(files)
                if is_wanted and kind == DATA and is_local(self.target):
                    self.turn_bit_of_segment(segments, body[:immediate])
                elif is_wanted:
                    body[immediate + length // 2] ^= 0x10
                self.deliver(pair, sink, header + body, files)
                files.clear()
        finally:
            for file in {*files, *segments}:
                os.close(file)

    @staticmethod
    def turn_bit_of_segment(segments, immediate):
        segment, offset, count = PLACE.unpack(immediate[-PLACE.size :])
        at = offset + count // 2
        (byte,) = os.pread(segments[segment], 1, at)
        os.pwrite(segments[segment], bytes([byte ^ 0x10]), at)


class Wires:
    """All wires to one producer, a relay a transport."""

    def __init__(self):
        self.relays = {}

    def each(self, what, *arguments):
        return [getattr(relay, what)(*arguments) for relay in self.relays.values()]

    def reset(self):
        self.each("reset")

    def swallow(self):
        self.each("swallow")

    def corrupt(self, kind, direction):
        self.each("corrupt", kind, direction)

    def has_corrupted(self):
        return any(self.each("has_corrupted"))

    def heal(self):
        self.each("heal")
        for relay in self.relays.values():
            relay.wanted = None

    def close(self):
        self.each("close")
