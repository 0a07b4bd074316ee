"""Chains as JSON text, encoded once: the body of a request costs the new tokens only.

Owns the encoded ids of the chains of samples that are alive, about 6 bytes a token, and nothing
else.
"""

from __future__ import annotations

from array import array

import msgspec

from rolloutkit.types import GenerateRequest, SampleId

_encode = msgspec.json.encode


class _Encoded:
    __slots__ = ("attempt", "last_id", "num_tokens", "text")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.num_tokens = 0
        self.last_id = -1
        self.text = bytearray()


class ChainEncodings:
    """The token ids of each chain as `1,2,3`. A chain only grows, so its text is appended to."""

    def __init__(self) -> None:
        self._chains: dict[SampleId, dict[int, _Encoded]] = {}

    def ids(self, request: GenerateRequest, token_ids: array[int]) -> bytearray:
        """The request's prompt as comma-separated ids, to be read at once: the next call appends.

        A new attempt at the sample drops what was kept of the chain. A prompt that ends in tokens
        of its own turn is encoded as a whole and not kept: they may not become the chain's.
        """
        if request.continued:
            return bytearray(_encode(token_ids.tolist())[1:-1])
        chains = self._chains.setdefault(request.sample_id, {})
        chain = chains.get(request.chain_index)
        if chain is None or chain.attempt != request.attempt:
            chain = chains[request.chain_index] = _Encoded(request.attempt)
        count = len(token_ids)
        known = chain.num_tokens
        assert known <= count, f"{request.request_id}: the chain lost tokens"
        assert not known or token_ids[known - 1] == chain.last_id, (
            f"{request.request_id}: the chain changed"
        )
        if known < count:
            fresh = _encode(token_ids[known:].tolist())
            if known:
                chain.text += b","
            chain.text += fresh[1:-1]
            chain.num_tokens, chain.last_id = count, token_ids[-1]
        return chain.text

    def drop(self, sample_id: SampleId) -> None:
        """Forget the sample's chains. Idempotent."""
        self._chains.pop(sample_id, None)

    def nbytes(self) -> int:
        """Bytes of text kept."""
        return sum(len(chain.text) for chains in self._chains.values() for chain in chains.values())
