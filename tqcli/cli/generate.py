"""`tq generate`: text from a model whose cache is compressed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import (
    BackendOption,
    BitsOption,
    CalibrationOption,
    DtypeOption,
    JsonOption,
    ModelArgument,
    OptionOption,
    RecentOption,
    SinksOption,
    chosen_calibration,
    chosen_codecs,
    load_model,
    named_model,
    say,
)
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.evaluation.generation import Generation


def generate(
    model: ModelArgument = None,
    prompt: Annotated[str, typer.Option("--prompt", help="The text to go on from, as it is: no chat template.")] = "",
    codec: Annotated[
        str | None, typer.Option("--codec", help="The codec as name@bits. Default: turboquant-mse@4.")
    ] = None,
    algo: Annotated[str | None, typer.Option("--algo", help="Codec, short for --codec ALGO@BITS.")] = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    sinks: SinksOption = 4,
    recent: RecentOption = 32,
    calibration: CalibrationOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens to generate at most.")] = 100,
    compare: Annotated[bool, typer.Option("--compare", help="Generate uncompressed too; tell where they part")] = False,
    dtype: DtypeOption = None,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Streams the likeliest continuation of a prompt from a model whose cache is compressed.

    Example: tq generate smollm2-135m --prompt "Once upon a time" --codec turboquant-mse@4 --compare
    """
    import json as json_module

    from tqcli.compression.plan import CompressionPlan
    from tqcli.evaluation.generation import first_difference
    from tqcli.evaluation.generation import generate as run
    from tqcli.evaluation.perplexity_calibration import plan_states
    from tqcli.kernels.runtime import used
    from tqcli.report.backends import backend_lines

    if not prompt:
        raise InputError("there is no prompt; give one with --prompt")
    chosen = chosen_codecs([codec] if codec else None, algo, bits, option, ["turboquant-mse@4"])
    if len(chosen) > 1:
        raise InputError(f"one codec at a time: {' or '.join(map(str, chosen))}; leave out --codec or --algo")
    plan = CompressionPlan(chosen[0], sinks=sinks, recent=recent)
    name = named_model(model)
    learned_from = chosen_calibration(calibration)
    loaded = load_model(name, dtype)
    before = used()
    learned = plan_states(loaded, [plan], learned_from)

    shown: list[str] = []

    def stream(text: str) -> None:
        shown.append(text if shown else prompt + text)
        if not json:
            print(shown[-1], end="", flush=True)

    coded = run(loaded, prompt, plan, max_tokens, states=learned[0] if learned else None, on_text=stream)
    stream("\n")
    plain = run(loaded, prompt, None, max_tokens) if compare else None
    backends = used(before)
    part = first_difference(plain.tokens, coded.tokens) if plain else None
    if json:
        document: dict[str, object] = {"codec": str(plan.codec), "prompt": prompt, "compressed": vars(coded)}
        if plain:
            document |= {"uncompressed": vars(plain), "first_difference": part}
        document["backends"] = [vars(use) for use in backends]
        print(json_module.dumps(document, indent=1))
        return
    for line in backend_lines(backends):
        say(line)
    _tell(str(plan.codec), coded, plain, part)


def _tell(codec: str, coded: Generation, plain: Generation | None, part: int | None) -> None:
    """Speed, bytes, and where the two texts part, on stderr: stdout holds the text."""
    held = coded.prompt_tokens + len(coded.tokens)
    line = f"{codec}: {coded.tokens_per_second:.1f} tokens/s, {coded.bytes_resident / 1e6:.2f} MB of cache"
    if plain:
        fp16 = plain.bytes_fp16 * held / (plain.prompt_tokens + len(plain.tokens))
        line += f" for {held} tokens, {fp16 / 1e6:.2f} MB in float16"
    say(line)
    if not coded.coded_tokens:
        say(f"nothing of the {held} tokens is coded yet: sinks, recent tokens and those to learn from come first")
    if plain is None:
        return
    say(f"uncompressed: {plain.tokens_per_second:.1f} tokens/s")
    if part is None:
        say(f"both go on with the same {len(coded.tokens)} tokens")
    else:
        say(f"they part at token {part + 1} of the continuation; uncompressed it goes on:")
        print(plain.text, file=sys.stderr)
