"""Files of inputs for a model."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.lib.format import write_array_header_1_0

from fedpatch.device_agent.models.inputs import read_inputs
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import from_arrays, from_dataset
from fedpatch.shared.tasks.reading.array_values import numbers_of


def _header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an array of float32, without its values."""
    stream = io.BytesIO()
    write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


SHAPES = st.sampled_from([(4,), (2, 3), (3, 2, 2), (1,)])


@given(shape=SHAPES, count=st.integers(1, 5), data=st.data())
def test_an_array_comes_back_as_it_was_saved(tmp_path_factory, shape, count, data):
    path = tmp_path_factory.mktemp("x") / "x.npy"
    saved = data.draw(arrays(np.float32, (count, *shape), elements=st.floats(-1e6, 1e6, width=32)))
    np.save(path, saved)
    np.testing.assert_array_equal(read_inputs(path, shape, "float32"), saved)
    np.save(path, saved[0])
    np.testing.assert_array_equal(read_inputs(path, shape, "float32"), saved[:1])


@given(shape=SHAPES, count=st.integers(1, 5), header=st.booleans(), data=st.data())
def test_a_table_has_one_example_in_each_row(tmp_path_factory, shape, count, header, data):
    """A row has the numbers of the flattened example in order; a header row is skipped."""
    path = tmp_path_factory.mktemp("x") / "x.csv"
    wanted = data.draw(arrays(np.float64, (count, *shape), elements=st.floats(-1e6, 1e6)))
    rows = [",".join(map(repr, map(float, row.ravel()))) for row in wanted]
    path.write_text("\n".join([*(["time,and so on"] if header else []), *rows, ""]))
    found = read_inputs(path, shape, "float64")
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_the_mark_that_spreadsheets_write_is_no_part_of_the_first_number(tmp_path):
    """Otherwise the first example would be skipped as a header row."""
    (tmp_path / "x.csv").write_text("1\n2\n", "utf-8-sig")
    np.testing.assert_array_equal(read_inputs(tmp_path / "x.csv", (1,), "float64"), [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("shape", "mode", "size"),
    [((3, 4, 5), "RGB", (5, 4)), ((1, 4, 5), "L", (5, 4)), ((4, 5), "L", (5, 4)), ((64,), "L", (8, 8))],
    ids=str,
)
def test_an_image_is_one_example(tmp_path, shape, mode, size):
    """Black is 0 and white is 1, colours come first; the image must have as many pixels as the model's input."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], *((3,) if mode == "RGB" else ())), np.uint8)
    image.fromarray(pixels).save(tmp_path / "x.png")
    found = read_inputs(tmp_path / "x.png", shape, "float32")
    expected = pixels.transpose(2, 0, 1) if mode == "RGB" else pixels
    np.testing.assert_allclose(found, expected.reshape(1, *shape) / 255.0, atol=1e-6)
    image.fromarray(pixels[1:]).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="scale it first"):
        read_inputs(tmp_path / "x.png", shape, "float32")


@pytest.mark.parametrize("mode", ["L", "RGB", "1"])
def test_picture_has_the_same_values_in_training_and_in_prediction(tmp_path, mode):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.effect_noise((5, 4), 50).convert(mode)
    picture.save(tmp_path / "x.png")
    trained = from_dataset([(picture, 0)]).x
    np.testing.assert_array_equal(read_inputs(tmp_path / "x.png", trained.shape[1:], "float32"), trained)
    np.testing.assert_array_equal(from_arrays([picture], [0]).x, trained)
    np.testing.assert_array_equal(
        numbers_of([picture]).astype(np.float32), trained
    )  # as PersonalModel.predict takes it


def test_grey_picture_for_a_model_of_colours_is_refused(tmp_path):
    """Training on such a picture would be refused too: its shape is another one."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("L", (5, 4)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="is grey, and the model takes colours"):
        read_inputs(tmp_path / "x.png", (3, 4, 5), "float32")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.txt", b"1,2", r"of no kind that can be read; use one of \.npy, \.csv"),
        ("x.npy", b"", "no array of numbers"),
        ("x.npy", b"not numpy", "no array of numbers"),
        ("x.npy", _header((10**14, 2)), "no array of numbers"),
        ("x.npy", b"PK\x03\x04 cut", "no array of numbers"),
        ("x.csv", b"", "there are none"),
        ("x.csv", b"a,b\n", "there are none"),
        ("x.csv", b"1,2\n3\n", "differ in length"),
        ("x.csv", b"1,2\n3,x\n", "row 2 holds something that is no number"),
        ("x.csv", b"1,2o\n3,4\n", "row 1 holds something that is no number"),
        ("x.csv", b"time,2\n3,4\n", "row 1 holds something that is no number"),
        ("x.csv", b"1,2,3\n", "2 numbers in each row"),
        ("x.csv", b"\xff\xfe\x00", "is text in UTF-16; give the inputs as CSV in UTF-8"),
        ("x.csv", b"\x1f\x8b\x08", "is compressed with gzip; give the inputs as CSV"),
        ("x.csv", b"1;2\n3;4\n", "are separated by ';': separate them by a comma"),
        ("x.csv", b"1,5;2\n3;4\n", "are separated by ';': separate them by a comma, and write decimals with a point"),
        ("x.csv", b"\xe4\xfc,\n", "no table of numbers as text"),
        ("x.png", b"no image", "give .npy or .csv|no image that Pillow"),
    ],
)
def test_unreadable_input_file_is_named(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, UsageError), match=problem) as caught:
        read_inputs(tmp_path / name, (2,), "float32")
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("name", ["x.csv", "x.npy"])
@pytest.mark.parametrize(
    ("value", "dtype"), [(2.7, "int64"), (300, "uint8"), (-1, "uint8"), (2, "bool"), (1e30, "int64")], ids=str
)
def test_numbers_that_a_model_of_integers_cannot_hold_are_refused(tmp_path, name, value, dtype):
    """A cast would change them, and the model would answer for other inputs."""
    path = tmp_path / name
    np.savetxt(path, [[1, 0]], delimiter=",") if name == "x.csv" else np.save(path, [[1, 0]])
    np.testing.assert_array_equal(read_inputs(path, (2,), dtype), np.array([[1, 0]], dtype))
    np.savetxt(path, [[1, value]], delimiter=",") if name == "x.csv" else np.save(path, [[1, value]])
    with pytest.raises(DataError, match=f"holds {value:g}, which {dtype} cannot hold".replace("+", r"\+")):
        read_inputs(path, (2,), dtype)


def test_image_for_a_model_of_integers_is_refused(tmp_path):
    """Its pixels are fractions, of which the cast would make zeros."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(np.full((2, 2), 200, np.uint8)).save(tmp_path / "x.png")
    with pytest.raises(UsageError, match=r"pixels are read as fractions from 0 to 1, and the model takes uint8"):
        read_inputs(tmp_path / "x.png", (2, 2), "uint8")


@pytest.mark.parametrize(
    "saved",
    [np.zeros((2, 3)), np.zeros((0, 2)), np.array(["a", "b"]), np.zeros(2, complex)],
    ids=["wide", "none", "text", "complex"],
)
def test_array_of_another_shape_is_refused(tmp_path, saved):
    np.save(tmp_path / "x.npy", saved)
    with pytest.raises(DataError, match=r"the model takes shape|no numbers"):
        read_inputs(tmp_path / "x.npy", (2,), "float32")


def test_pickled_arrays_are_refused(tmp_path):
    """An array of objects can hold code; an archive is not one array."""
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="no array of numbers"):
        read_inputs(tmp_path / "x.npy", (1,), "float32")
    np.savez(tmp_path / "y", a=np.zeros(1))
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    with pytest.raises(DataError, match="archive"):
        read_inputs(tmp_path / "y.npy", (1,), "float32")


def test_missing_input_file_is_an_error(tmp_path: Path):
    for name in ("x.npy", "x.csv"):
        with pytest.raises(DataError, match="No such file"):
            read_inputs(tmp_path / name, (1,), "float32")


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("RGBA", "transparency"),
        ("P", "palette"),
        ("I;16", "deeper than 8 bits"),
        ("RGB", "has colours, and the model takes grey"),
        ("turned", "to be turned"),
    ],
)
def test_picture_that_a_conversion_would_change_is_refused(tmp_path, mode, words):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.new("L" if mode == "turned" else mode, (2, 2))
    exif = image.Exif()
    exif[274] = 3
    picture.save(tmp_path / "x.png", exif=exif if mode == "turned" else None)
    with pytest.raises(DataError, match=words):
        read_inputs(tmp_path / "x.png", (2, 2), "float32")


@pytest.mark.parametrize("cell", ["1_000", "１２", "inf", "1e999"])
def test_text_that_nobody_writes_is_no_number_of_a_table(tmp_path, cell):
    (tmp_path / "x.csv").write_text(f"1,2\n3,{cell}\n")
    with pytest.raises(DataError, match="row 2 holds something that is no number: column 2"):
        read_inputs(tmp_path / "x.csv", (2,), "float32")


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(DataError, match="is no regular file"):
        read_inputs(tmp_path / "x.csv", (4,), "float32")


def test_quote_that_is_not_closed_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text('1,2,3,"4\n')
    with pytest.raises(DataError, match="is no table of numbers"):
        read_inputs(tmp_path / "x.csv", (4,), "float32")


def test_damaged_image_is_refused_as_an_image(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.effect_noise((64, 64), 50).save(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes((tmp_path / "x.png").read_bytes()[:-900])
    with pytest.raises(DataError, match=r"is a picture that cannot be read: .*replace it"):
        read_inputs(tmp_path / "x.png", (64, 64), "float32")
