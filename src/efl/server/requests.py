"""The requests of a round: what all clients receive, and how each catches up with the server's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings, ServerState
from efl.server.client_table import ClientTable
from efl.wire import FIRST, BroadcastLog, CatchUp, Context, Dense, TrainRequest, encode, kinds_of
from efl.wire.parts import coding_context, coding_part


@dataclass(frozen=True)
class Shared:
    """What all clients of a round receive alike, encoded, what increments are coded by with it, and by which part."""

    parts: dict[str, bytes]
    context: Context
    coded_by: bytes = b""

    @classmethod
    def of(
        cls, algorithm: Algorithm, server: ServerState, buffers: Tensor, settings: RoundSettings, plain: Context
    ) -> Shared:
        """What the algorithm broadcasts besides the model, and the model's buffers."""
        broadcast = algorithm.broadcast(server, settings)
        parts = {name: encode(payload, plain) for name, payload in broadcast.items()}
        context, name = coding_context(broadcast, plain), coding_part(broadcast)
        coded_by = b"" if name is None else parts[name]
        if buffers.numel():
            parts["buffers"] = encode(Dense(buffers.numpy()), Context.flat(len(buffers)))
        return cls(parts, context, coded_by)


@dataclass(frozen=True)
class RequestEncoder:
    """Makes the training requests of one round.

    ``first`` is the checksum of the first model, which clients may rebuild from their seed.
    """

    algorithm: Algorithm
    server: ServerState
    settings: RoundSettings
    shared: Shared
    log: BroadcastLog
    plain: Context
    first: int

    def encoded(
        self, clients: list[int], table: ClientTable, part_kinds: Mapping[str, str]
    ) -> Iterator[tuple[int, bytes, Mapping[str, int]]]:
        """For each client its request, encoded, and how many bytes of it are of which kind."""
        catch_up = CatchUp(self.log, self.shared.context, lambda: encode(Dense(self.server.w.numpy()), self.plain))
        settings, shared_kinds = self.settings, kinds_of(self.shared.parts, part_kinds)
        versions, accepted = table.version[clients].tolist(), table.accepted[clients].tolist()
        for version in sorted(set(versions), reverse=True):
            catch_up.update(version)  # the shortest way first: others are added to it
        for client, version, last in zip(clients, versions, accepted, strict=True):
            update = catch_up.update(version)
            personal = self._personal(client)
            request = TrainRequest(
                settings.round,
                client,
                settings.eta,
                settings.local_steps,
                settings.batch_size,
                settings.clients,
                settings.coarseness,
                last,
                update.how,
                update.base,
                self.log.version,
                self.first if version == FIRST and update.how != "model" else None,
                self.shared.parts,
                personal,
                update.blobs,
            )
            kinds = {
                **shared_kinds,
                "update": shared_kinds["update"] + update.current_bytes,
                "catch-up": shared_kinds["catch-up"] + len(update) - update.current_bytes,
                "state": shared_kinds["state"] + len(personal or b""),
            }
            yield client, request.to_bytes(), kinds

    def _personal(self, client: int) -> bytes | None:
        payload = self.algorithm.broadcast_to(self.server, client)
        return None if payload is None else encode(payload, self.plain)
