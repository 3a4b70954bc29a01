"""Whether the image of Spark jobs has the version of the operator."""

import pytest

from holdfast_operator.sparkapps.images import DEFAULT, VERSION, mismatch


@pytest.mark.parametrize(
    "image",
    [
        DEFAULT,
        f"r.example:5000/team/spark:{VERSION}",
        f"spark:v{VERSION}@sha256:0f",
        "spark",
        "spark:latest",
        "spark:1",
        "r.example:5000/spark",
        "spark@sha256:0f",
    ],
)
def test_no_difference_is_shown(image: str) -> None:
    assert mismatch(image) is None


@pytest.mark.parametrize(
    "image", ["spark:0.1.0", "r.example:5000/spark:v9.9.9-rc.1", "spark:0.1.0@sha256:0f"]
)
def test_another_version_is_told_with_what_to_do(image: str) -> None:
    told = mismatch(image) or ""
    assert f"the image {image} of Spark jobs has another version than this operator, {VERSION}" in told
    assert "leave out spark.image" in told
