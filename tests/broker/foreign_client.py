"""An independent device client, written from docs/reference/protocol.md and topics.md alone, without code of fedpatch.

It reads settings as JSON from standard input: host, port, ca, certificate, key, fleet, device, task, schema (a list of
[name, shape, dtype, role]), policies (the values of `private` that its owner agrees to), examples and shift. Its training
is a stand-in: see `train`. It accepts whole models in fp32, over MQTT 3.1.1. It keeps no state on disk, so requests may repeat.
"""

import hashlib
import itertools
import json
import signal
import struct
import sys
import time
import uuid
import zlib

import msgpack
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

HEADER = struct.Struct("!2sBB32sIIII")  # mark, layout, flags, digest of the blob, index, count, length, CRC-32
PRIVATE = {"none": (), "stats": ("stats",), "affine": ("affine",), "all": ("stats", "affine")}
NEED_AT_ONCE, NEED_S, OFFER_S, GRANTED_S, LONGEST_S = 32, 1.0, 3.0, 5.0, 30.0


def digest_of(schema):
    """SHA-256 of a schema's entries as compact JSON."""
    return hashlib.sha256(json.dumps(schema, separators=(",", ":")).encode("ascii")).hexdigest()


def travelling(schema, request):
    """The schema of what is sent: the tensors that are not private, and the moments of the trained tensors among them."""
    public = [entry for entry in schema if entry[3] not in PRIVATE[request["private"]]]
    for (name, shape, dtype, role), kind in itertools.product(list(public), request["plan"]["moments"]):
        if role in ("weight", "affine"):
            public.append([f"{name}:{kind}", *([[], "float32"] if kind == "step" else [shape, dtype]), "moment"])
    return sorted(public)


def train(tensors, schema, shift):
    """Stands in for training: moves each trained float32 value by `shift`; counters and moments stay unchanged."""
    for entry, tensor in zip(schema, tensors, strict=True):
        if entry[2:] in (["float32", "weight"], ["float32", "affine"]):
            values = struct.iter_unpack("<f", tensor[3])
            tensor[3] = b"".join(struct.pack("<f", value + shift) for (value,) in values)


class Job:
    """The device's part in one round: it downloads a model in chunks, and uploads an update in chunks."""

    def __init__(self, about, request, schema):
        self.about, self.request, self.schema, self.model = about, request, schema, request["model"]
        self.phase, self.chunks, self.manifest, self.began = "downloading", {}, {}, time.monotonic()
        self.pause, self.due = NEED_S, self.began + NEED_S  # between `need`s or `offer`s, and when the next is due
        # The update's chunks that have arrived, those in flight, and the largest number in flight.
        self.have, self.flying, self.window = set(), set(), 0

    def take(self, payload):
        """Keep a chunk of the model if it is whole and new."""
        *head, index, count, length, crc = HEADER.unpack(payload[: HEADER.size])
        data, size = payload[HEADER.size :], self.model["chunk_bytes"]
        known = [*head, count] == [b"fp", 1, 0, bytes.fromhex(self.model["digest"]), self.model["chunk_count"]]
        whole = length == len(data) == min(size, self.model["size_bytes"] - index * size) and zlib.crc32(data) == crc
        if known and whole and index not in self.chunks:
            self.chunks[index] = data
            self.pause, self.due = NEED_S, time.monotonic() + NEED_S

    def make_update(self, examples, shift):
        """Train on the model, and pack the result. Return False if the model is not the announced one."""
        blob, whole = b"".join(self.chunks[index] for index in sorted(self.chunks)), time.monotonic()
        tensors = msgpack.unpackb(blob)["tensors"] if hashlib.sha256(blob).hexdigest() == self.model["digest"] else []
        if [[name, shape, form] for name, form, shape, _ in tensors] != [entry[:3] for entry in self.schema]:
            return False
        train(tensors, self.schema, shift)
        report = {"base": self.model["digest"], "num_examples": examples, "steps": 1, "train_loss": 0.0}
        report |= {"user_accuracy_before": None, "user_accuracy_after": None}  # not measured
        report |= {"download_s": whole - self.began, "train_s": time.monotonic() - whole}
        self.blob, size = msgpack.packb({"meta": report, "tensors": tensors}), self.request["chunk_bytes"]
        self.manifest = {"digest": hashlib.sha256(self.blob).hexdigest(), "encoding": "fp32", "chunk_bytes": size}
        self.manifest |= {"size_bytes": len(self.blob), "raw_bytes": len(self.blob), "schema": digest_of(self.schema)}
        self.manifest["chunk_count"] = -(-len(self.blob) // size)
        self.phase, self.pause, self.due = "uploading", OFFER_S, 0.0
        return True

    def next_chunks(self, body):
        """Act on a `grant` or an `ack`: yield topic and bytes of each chunk of the update that may be sent now."""
        count, size, digest = self.manifest["chunk_count"], self.manifest["chunk_bytes"], self.manifest["digest"]
        self.have |= {index for index in range(count) if body["have"][index // 8] >> index % 8 & 1}
        # A grant answers an offer that was sent after these chunks: chunks that it does not name were lost.
        self.flying = set() if "window" in body else self.flying - self.have
        self.window, self.pause, self.due = body.get("window", self.window), OFFER_S, time.monotonic() + GRANTED_S
        waiting = [index for index in range(count) if index not in self.have | self.flying]
        for index in waiting[: max(0, self.window - len(self.flying))]:
            self.flying.add(index)
            data = self.blob[index * size : (index + 1) * size]
            head = HEADER.pack(b"fp", 1, 0, bytes.fromhex(digest), index, count, len(data), zlib.crc32(data))
            yield f"blob/{digest[:16]}/{index}", head + data


class Device:
    """Answers the coordinator."""

    def __init__(self, settings):
        self.at, self.numbers, self.boot, self.coordinator = settings, itertools.count(1), uuid.uuid4().hex, ""
        self.job, self.past = None, {}  # `past`: epoch and round of each run's last request that has ended
        self.fleet, name = f"fedpatch/1/{settings['fleet']}", settings["device"]
        self.mine = f"{self.fleet}/dev/{name}"
        name = f"fedpatch.{settings['fleet']}.device.{name}"
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self.client.tls_set(settings["ca"], settings["certificate"], settings["key"])
        self.will = (f"{self.mine}/state", self.message("device_state", {"online": False, "boot": self.boot}), 1, True)
        self.client.will_set(*self.will)
        self.client.on_connect = lambda *_: self.appear()
        self.client.on_message = lambda _client, _data, got: self.receive(got.topic, got.payload)

    def message(self, kind, body, about=None):
        """Return the bytes of a message. A presence message belongs to no run."""
        about = about or {"k": "", "r": "", "e": 0, "n": 0}
        return msgpack.packb({"v": 1, "t": kind, "i": next(self.numbers), **about, "b": body})

    def send(self, about, kind, **body):
        self.client.publish(f"{self.mine}/up", self.message(kind, body, about), 1)

    def appear(self):
        """After each connect: subscribe, publish presence, and let the job repeat its unanswered messages."""
        task = {"task": self.at["task"], "schema": digest_of(self.at["schema"]), "num_examples": self.at["examples"]}
        state = {"online": True, "boot": self.boot, "version": "foreign", "tasks": [task], "encodings": ["fp32"]}
        state |= {"job": None, "unwilling": None, "features": []}
        self.client.subscribe([(f"{self.fleet}/coord", 1), (f"{self.mine}/dn", 1)])
        if self.job:
            (_, run, epoch, number), self.job.due = self.job.about.values(), 0.0
            state["job"] = {"run": run, "epoch": epoch, "round": number, "phase": self.job.phase}
            self.client.subscribe(f"{self.fleet}/blob/{self.job.model['digest']}/+", 1)
        self.client.publish(f"{self.mine}/state", self.message("device_state", state), 1, True)

    def receive(self, topic, payload):
        """Act on a chunk or a message. An empty payload only deletes a retained chunk at the broker."""
        if topic.startswith(f"{self.fleet}/blob/"):
            if payload and self.job and self.job.phase == "downloading":
                self.job.take(payload)
        elif (got := msgpack.unpackb(payload))["v"] == 1:
            about = {key: got[key] for key in "kren"}  # task, run, epoch, round
            if got["t"] == "coordinator_state" and got["b"]["boot"] != self.coordinator:
                self.coordinator = got["b"]["boot"]
                self.appear()
            elif got["t"] == "work_request":
                self.asked(about, got["b"])
            elif self.job and about == self.job.about:
                self.answered(self.job, got["t"], got["b"])

    def asked(self, about, request):
        """Accept or decline a request; an outdated request gets no answer."""
        (task, run, *when), model, mine = about.values(), request["model"], digest_of(self.at["schema"])
        if when <= self.past.get(run, []):
            return
        if task != self.at["task"] or request["schema"] != mine:
            reason = "unknown_task" if task != self.at["task"] else "schema_mismatch"
        elif request["private"] not in self.at["policies"]:
            reason = "private_policy" if "owner_limits" in request.get("features", []) else "unsupported"
        else:  # a real device also compares `size_bytes` with its memory, and `plan` with what it can train
            reason = "" if {request["encoding"], model["encoding"]} == {"fp32"} else "unsupported"
        if reason:
            return self.send(about, "decline", reason=reason, detail="", condition=None, retry_after_s=0.0)
        if not self.job or self.job.about != about:
            self.end("dropped for newer work")
            self.job = Job(about, request, travelling(self.at["schema"], request))
            self.past[run] = [when[0], when[1] - 1]  # requests older than the job get no answer either
            self.client.subscribe(f"{self.fleet}/blob/{model['digest']}/+", 1)
        if self.job.phase == "downloading":
            self.send(about, "accept", num_examples=self.at["examples"])

    def answered(self, job, kind, body):
        """Act on the coordinator's answer to an offer, or on the end of the round."""
        if kind in ("committed", "refused", "cancel") and body.get("digest") in (None, job.manifest.get("digest")):
            self.end(f"{kind} {body.get('reason', '')}")
        elif body.get("digest") == job.manifest.get("digest"):
            if kind == "retry_after":
                job.due = time.monotonic() + body["delay_s"]
            for topic, payload in job.next_chunks(body) if kind in ("grant", "ack") else ():
                self.client.publish(f"{self.mine}/{topic}", payload, 1)

    def end(self, how):
        """Forget the job if there is one, and print how it ended."""
        if self.job:
            (_, run, *when), self.past[run] = self.job.about.values(), [*self.job.about.values()][2:]
            sys.stdout.write(f"round {when[1]}: {how}\n")
            self.client.unsubscribe(f"{self.fleet}/blob/{self.job.model['digest']}/+")
            self.job = None

    def work(self, job):
        """Do the step that is due: train, request chunks, or offer the update."""
        count = job.model["chunk_count"]
        if job.phase == "downloading" and len(job.chunks) == count:
            self.send(job.about, "progress", phase="training", done=0, total=1)
            if not job.make_update(self.at["examples"], self.at["shift"]):
                self.send(job.about, "failed", reason="download", condition=None)
                return self.end("failed")
        if time.monotonic() >= job.due:
            if job.phase == "downloading":
                missing = [index for index in range(count) if index not in job.chunks][:NEED_AT_ONCE]
                bits = sum(1 << index for index in missing).to_bytes((count + 7) // 8, "little")
                self.send(job.about, "need", digest=job.model["digest"], missing=bits)
            else:
                self.send(job.about, "offer", manifest=job.manifest)
                job.window = 0  # until a grant names the chunks that arrived
            job.due, job.pause = time.monotonic() + job.pause, min(2 * job.pause, LONGEST_S)

    def run(self, stopped):
        """Take part until `stopped` is not empty, then publish the last will and disconnect."""
        self.client.connect(self.at["host"], self.at["port"], keepalive=30)
        while not stopped:
            try:
                if self.client.loop(0.1) != mqtt.MQTT_ERR_SUCCESS:
                    time.sleep(1.0)
                    self.client.reconnect()
            except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
                sys.stderr.write(f"no connection, or a message that does not fit: {error!r}\n")
            if self.job:
                self.work(self.job)
        self.client.publish(*self.will)
        self.client.disconnect()


if __name__ == "__main__":
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    Device(json.load(sys.stdin)).run(stopping)
