using System;
using System.Linq;
using Edgegrad.@Name@;

/// <summary>Training from C#: Example ../checkpoint out.</summary>
public static class Example
{
    private static readonly Random Draw = new Random(1);

    // A batch for one input; a program would read its own here.
    private static Array MakeBatch(Tensor tensor)
    {
        var indices = Enumerable.Range(0, tensor.Elements);
        if (tensor.Dtype == Dtype.F32)
            return indices.Select(_ => (float)Draw.NextDouble()).ToArray();
        return indices.Select(_ => (long)Draw.Next(2)).ToArray();
    }

    public static void Main(string[] arguments)
    {
        using (var model = Model.Create(arguments[0]))
        {
            model.SetLearningRate(0.01f);
            for (int step = 1; step <= 20; step++)
            {
                var inputs = Enumerable.Range(0, model.InputCount(Phase.Train))
                    .Select(i => MakeBatch(model.InputInfo(Phase.Train, i))).ToArray();
                float loss = model.TrainStep(inputs)[0].Item;
                if (!model.IsJoined())
                    model.OptimizerStep();
                model.LazyResetGrad();
                Console.WriteLine("step " + step + ": loss " + loss);
            }
            model.Save(arguments[1], true);
        }
    }
}
