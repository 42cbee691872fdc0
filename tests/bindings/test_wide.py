"""Models of float64: their parameters are doubles in every language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings.packages import NATIVE, make_example
from tests.bindings.programs import HERE, TOOLCHAINS
from tests.support.builds import needs_cc

# By language: a program that doubles the trained values of a checkpoint, and its file.
PROGRAMS = {
    "cpp": ("wide.cpp", """\
#include "mnist.hpp"
#include <cstdio>
int main(int, char **argv)
{
    auto model = mnist_cpp::Model::create(argv[1]);
    const std::vector<double> values = model.parameters_f64(1);
    std::vector<double> twice = values;
    for (double &value : twice)
        value *= 2;
    model.set_parameters_f64(twice.data(), twice.size(), 1);
    std::printf("%d %d\\n", static_cast<int>(values.size()), model.parameters_f64(1) == twice);
    return 0;
}
"""),
    "java": ("Wide.java", """\
import edgegrad.mnist.Model;
import java.util.Arrays;
public final class Wide {
  public static void main(String[] arguments) {
    try (Model model = Model.create(arguments[0])) {
      double[] twice = Arrays.stream(model.parametersF64(true)).map(each -> 2 * each).toArray();
      model.setParametersF64(twice, true);
      boolean same = Arrays.equals(twice, model.parametersF64(true));
      System.out.println(twice.length + " " + (same ? 1 : 0));
    }
  }
}
"""),
    "csharp": ("Wide.cs", """\
using System;
using System.Linq;
using Edgegrad.Mnist;
public static class Wide
{
    public static void Main(string[] arguments)
    {
        using (var model = Model.Create(arguments[0]))
        {
            double[] twice = model.ParametersF64().Select(each => 2 * each).ToArray();
            model.SetParametersF64(twice, true);
            bool same = twice.SequenceEqual(model.ParametersF64());
            Console.WriteLine(twice.Length + (same ? " 1" : " 0"));
        }
    }
}
"""),
    "rust": ("wide.rs", """\
fn main() -> Result<(), mnist::Error> {
    let mut model = mnist::Model::create(&std::env::args().nth(1).unwrap())?;
    let twice: Vec<f64> = model.parameters_f64(true)?.iter().map(|each| 2.0 * each).collect();
    model.set_parameters_f64(&twice, true)?;
    println!("{} {}", twice.len(), i32::from(twice == model.parameters_f64(true)?));
    Ok(())
}
"""),
    "go": ("wide.go", """\
// Program wide doubles the trained values of a checkpoint.
package main

import (
	"fmt"
	"os"
	"reflect"

	"mnist"
)

func main() {
	model, _ := mnist.Create(os.Args[1])
	twice, _ := model.ParametersF64(true)
	for k := range twice {
		twice[k] *= 2
	}
	refused := model.SetParametersF64(twice, true)
	values, err := model.ParametersF64(true)
	if refused == nil && err == nil && reflect.DeepEqual(twice, values) {
		fmt.Println(len(twice), 1)
	}
}
"""),
    "js": ("wide.mjs", """\
const { Model } = await import(`${process.argv[2]}/mnist.js`);
const model = await Model.open(process.argv[3]);
const twice = model.parametersF64().map((each) => 2 * each);
model.setParametersF64(twice, true);
const same = model.parametersF64().every((each, index) => each === twice[index]);
console.log(twice.length, same ? 1 : 0);
"""),
}  # fmt: skip


@needs_cc
@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=TOOLCHAINS[name].needs) for name in PROGRAMS]
)
def test_parameters_are_doubles(language: str, tmp_path: Path) -> None:
    own = language == "js"
    folder = make_example("wide", "js" if own else NATIVE, "wasm32" if own else "native")
    name, text = PROGRAMS[language]
    source = tmp_path / "source" / name
    source.parent.mkdir()
    source.write_text(text, "utf-8")
    program = TOOLCHAINS[language].make(folder, source, tmp_path, HERE)
    assert program.run(folder / "checkpoint") == "15 1\n"
