"""What the frames of a stream hold: the text of an answer, its reasoning, the token counts."""

import json
from typing import Any, Literal, NamedTuple

Channel = Literal["content", "reasoning", ""]


class Usage(NamedTuple):
    """Token counts that a server states; None where it states none."""

    input_tokens: float | None
    output_tokens: float | None


def decoded(where: str, frame: str) -> dict[str, Any]:
    """The JSON object of one frame, `data:` in front or not; empty for `[DONE]`."""
    text = frame.removeprefix("data:").strip()
    if text in ("", "[DONE]"):
        return {}
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{where} must hold JSON: got {text!r:.80}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must hold a JSON object: got {text!r:.80}")
    return value


def channel(frame: dict[str, Any]) -> Channel:
    """What a frame adds to the answer: "" for a role, a usage count or an empty text.

    Completions carry `text`, chats a `delta` (or a whole `message`), Anthropic's messages a bare
    `delta`, Triton `text_output`. A call of a tool is content.
    """
    choices = frame.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else frame
    if not isinstance(choice, dict):
        return ""
    delta = choice.get("delta") or choice.get("message") or {}
    if not isinstance(delta, dict):
        return ""
    said = (choice.get("text"), choice.get("text_output"), delta.get("content"), delta.get("text"))
    if any(said) or delta.get("tool_calls"):
        return "content"
    thought = (delta.get("reasoning_content"), delta.get("reasoning"), delta.get("thinking"))
    return "reasoning" if any(thought) else ""


def usage(where: str, stated: Any) -> Usage:
    """The counts of a `usage` object, in OpenAI's words or in Anthropic's."""
    if not isinstance(stated, dict):
        return Usage(None, None)

    def first(*keys: str) -> float | None:
        for key in keys:
            value = stated.get(key)
            if value is None:
                continue
            if type(value) is not int or value < 0:
                raise ValueError(f"{where}: {key} must be a whole number >= 0: got {value!r:.80}")
            return float(value)
        return None

    return Usage(
        first("prompt_tokens", "input_tokens"), first("completion_tokens", "output_tokens")
    )
