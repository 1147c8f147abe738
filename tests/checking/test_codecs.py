"""`fm.check` finds each mistake in a codec that makes it, and nothing in the library's own codecs."""

import pytest

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK
from helpers.codec_mistakes import MISTAKES, Doubles, NotUnbiased, Plain
from helpers.codecs import CODECS
from helpers.plain_classes import Largest


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.extended
def test_every_codec_passes(codec):
    assert fm.check(codec) == []


@pytest.mark.parametrize(
    "codec",
    [Plain(), Quantize(4), [Rotate(), RandomK(0.3), Float16()], ErrorFeedback(TopK(0.1)), ErrorFeedback([Sign()])],
    ids=str,
)
def test_correct_codecs_pass(codec):
    assert fm.check(codec) == []


@pytest.mark.parametrize(
    "codec",
    [Largest(), ErrorFeedback(Largest()), [TopK(0.5), Largest()]],
    ids=["alone", "with error feedback", "in a chain"],
)
def test_bytes_without_the_dtype_are_those_of_float32(codec):
    assert fm.check(codec) == []


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_is_one_finding(kind):
    (found,) = fm.check(kind())
    assert found.startswith(MISTAKES[kind])


def test_error_feedback_needs_a_contraction():
    assert fm.check(Doubles()) == []
    (found,) = fm.check(ErrorFeedback(Doubles()))
    assert found.startswith("Cannot use this codec in ErrorFeedback because its residual grows without bound")


def test_findings_are_printed(capsys):
    fm.check([Float16()], verbose=True)
    assert "a cohort row by row: ok" in capsys.readouterr().out
    fm.check(NotUnbiased(), verbose=True)
    assert "mean over keys: NotUnbiased: 'unbiased' must be False" in capsys.readouterr().out


def test_a_class_is_refused():
    with pytest.raises(ValueError, match=r"got the class Quantize; use Quantize\(...\)"):
        fm.check(Quantize)
