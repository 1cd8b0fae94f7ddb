"""Language codes as ISO 639-1 has them."""

from __future__ import annotations

import re

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
uzn:uz vie:vi xho:xh yid:yi ydd:yi ji:yi yor:yo zul:zu
"""
_SHORT = dict(pair.split(":") for pair in _LONG_CODES.split())


def base_code(code: str) -> str:
    """The language of a code as identification names it: `de` of de-DE, deu and deu_Latn."""
    language = re.split("[-_]", code)[0].lower()
    return _SHORT.get(language, language)
