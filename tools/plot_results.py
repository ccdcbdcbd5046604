#!/usr/bin/env python3
"""Draws what `quantspec bench`, `eval` and `roofline` wrote with -o json, and what kernel_bench
wrote with --benchmark_format=json.

    tools/plot_results.py FILE.json... -o DIR [--format svg|png]

Writes DIR/REPORT-FIGURE.svg for every figure that a report has the data for, REPORT being the name
of its file, and prints the paths; says which figures it did not draw, and which data they need. A
report of bench with several temperatures gives a picture for each. All reports of one measurement
of eval are drawn together, under the name of the first. Needs python3-matplotlib.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from plots.reports import Missing, Unusable, load  # noqa: E402


def jobs(reports):
    """(figure, name of its file, function, what it takes before the path) of all there may be."""
    from plots import fidelity, kernels, roofline, speed
    for report in (report for report in reports if report.kind == "bench"):
        temperatures = report.temperatures()
        for temperature in temperatures:
            end = "greedy" if temperature == 0 else f"t{temperature:g}"
            for name, draw in speed.FIGURES.items():
                file = f"{report.name}-{name}" + (f"-{end}" if len(temperatures) > 1 else "")
                yield name, file, draw, (report, temperature)
    for report in (report for report in reports if report.kind == "roofline"):
        for name, draw in roofline.FIGURES.items():
            yield name, f"{report.name}-{name}", draw, (report, )
    for report in (report for report in reports if report.kind == "kernels"):
        for name, draw in kernels.FIGURES.items():
            yield name, f"{report.name}-{name}", draw, (report, )
    for kind, (name, draw) in fidelity.FIGURES.items():
        together = [report for report in reports if report.kind == kind]
        if together:
            yield name, f"{together[0].name}-{name}", draw, (together, )


def plot(reports, folder, form="svg", wanted=None):
    """Draws all figures that can be, or those that are wanted. Returns {path: what it shows}, and
    {name of a file that was not drawn: the data it needs}."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, missing = {}, {}
    for figure, name, draw, what in jobs(reports):
        if wanted is not None and figure not in wanted:
            continue
        path = folder / f"{name}.{form}"
        try:
            draw(*what, path)
            drawn[path] = " ".join(draw.__doc__.split())
        except Missing as data:
            missing[name] = str(data)
    return drawn, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    args = parser.parse_args()
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit(
            "plot_results: needs matplotlib: tools/install_deps.sh plots, or pip install matplotlib"
        )
    try:
        drawn, missing = plot([load(file) for file in args.files], args.output, args.format)
    except Unusable as error:
        sys.exit(f"plot_results: {error}")
    for path in drawn:
        print(path)
    for name, data in missing.items():
        print(f"not drawn: {name}: needs {data}", file=sys.stderr)


if __name__ == "__main__":
    main()
