using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using Edgegrad.Mnist;

/// <summary>Every method with values that nobody should pass: Hostile CHECKPOINT.</summary>
public static class Hostile
{
    private static readonly Dictionary<Type, object[]> values = new Dictionary<Type, object[]>
    {
        [typeof(int)] = new object[] { 0, -1, int.MaxValue, int.MinValue, 1 },
        [typeof(long)] = new object[] { 0L, -1L, long.MaxValue, long.MinValue, 1L },
        [typeof(float)] = new object[] { float.NaN, -1f, float.PositiveInfinity, 1e30f, 0f },
        [typeof(bool)] = new object[] { true, false, true, false, true },
        [typeof(string)] = new object[] { null, "", "a\0b", new string('x', 5000), "missing/x" },
        [typeof(Phase)] = new object[] { (Phase)99, Phase.Train, Phase.Eval, Phase.Infer, (Phase)(-1) },
        [typeof(byte[])] = new object[] { null, new byte[0], new byte[1], new byte[99999], null },
        [typeof(float[])] = new object[] { null, new float[0], new float[1], new float[9999], null },
        [typeof(double[])] = new object[] { null, new double[0], new double[1], new double[9], null },
        [typeof(Array)] = new object[] { null, new[] { "text" }, new float[1], new long[0], new int[3] },
        [typeof(Array[])] = new object[]
        {
            null, new Array[0], new Array[] { null, null }, new Array[] { new float[1] }, new Array[3]
        },
    };

    private static void CallAll(Model model)
    {
        const BindingFlags own = BindingFlags.Public | BindingFlags.Instance | BindingFlags.DeclaredOnly;
        foreach (var method in typeof(Model).GetMethods(own).OrderBy(each => each.ToString()))
        {
            for (int turn = 0; method.Name != "Dispose" && turn < 5; turn++)
            {
                var given = method.GetParameters()
                    .Select((each, index) => values[each.ParameterType][(turn + 2 * index) % 5]).ToArray();
                try
                {
                    method.Invoke(model, given);
                }
                catch (TargetInvocationException error)
                {
                    if (!(error.InnerException is ModelException) || error.InnerException.Message == "")
                        Console.WriteLine(method + ": " + error.InnerException);
                }
            }
        }
    }

    public static void Main(string[] arguments)
    {
        using (var model = Model.Create(arguments[0]))
        using (var closed = Model.Create(arguments[0]))
        {
            closed.Dispose();
            try
            {
                Model.CreateFrom(new byte[0]).Dispose();
            }
            catch (ModelException error)
            {
                Console.WriteLine(error.Message); // not a model without values, as of null
            }
            CallAll(model);
            CallAll(closed);
            var x = new float[model.InputInfo(Phase.Train, 0).Elements];
            var y = new long[model.InputInfo(Phase.Train, 1).Elements];
            var loss = model.TrainStep(x, y)[0].Item;
            Console.WriteLine(loss < 1000 ? "loss true" : "loss false");
        }
    }
}
