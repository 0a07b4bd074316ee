"""Messages to token ids and back, without ever rendering again what a model sampled.

The `renderers` library owns the templates of the model families. This package drives it over
growing chains, adds ChatML for SmolLM2, keeps foreign text from becoming control tokens, and checks
at start-up that a template only ever appends. Everything here belongs to one thread.

    messages ──start/extend──► token ids ──engine──► completion ──parse──► AssistantMessage
"""

from rolloutkit.render.check import check_append_only
from rolloutkit.render.factory import make_renderer
from rolloutkit.render.token_renderer import TokenRenderer
from rolloutkit.render.tokenizer import Tokenizer

__all__ = ["TokenRenderer", "Tokenizer", "check_append_only", "make_renderer"]
