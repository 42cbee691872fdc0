using System;
using System.Diagnostics;
using Edgegrad.Mlp;

/// <summary>The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS.</summary>
public static class Step
{
    public static void Main(string[] arguments)
    {
        int blocks = int.Parse(arguments[1]), steps = int.Parse(arguments[2]);
        double least = double.MaxValue;
        using (var model = Model.Create(arguments[0]))
        {
            var x = new float[model.InputInfo(Phase.Train, 0).Elements];
            var y = new long[model.InputInfo(Phase.Train, 1).Elements];
            for (int block = 0; block < blocks; block++)
            {
                var watch = Stopwatch.StartNew();
                for (int k = 0; k < steps; k++)
                {
                    model.TrainStep(x, y);
                    model.OptimizerStep();
                    model.LazyResetGrad();
                }
                least = Math.Min(least, 1e9 * watch.ElapsedTicks / Stopwatch.Frequency / steps);
            }
        }
        Console.WriteLine((long)least);
    }
}
