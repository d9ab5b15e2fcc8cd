"""Every registered codec at several bits: a new one is tested by itself."""

from tqcli.codecs.base import registered_codecs
from tqcli.codecs.spec import CodecSpec


def every_codec() -> list[CodecSpec]:
    """At its lowest, a middle and its highest bits, where it has a choice."""
    found = []
    for name, cls in registered_codecs().items():
        allowed = cls.bits_allowed
        bits = sorted({allowed[0], allowed[len(allowed) // 2], allowed[-1]}) if allowed else [None]
        found += [CodecSpec(name, b) for b in bits]
    return found
