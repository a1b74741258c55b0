"""What tests of figures share."""

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pytest

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def drawn(ax):
    ax.figure.savefig("/dev/null", format="png")
    return ax


def title(ax):
    return ax.get_title(loc="left").replace("\n", " ")
