using System;
using System.Linq;
using Edgegrad.Mnist;

/// <summary>The names of onnxruntime's TrainingSession: Names CHECKPOINT TRAINED EXPORTED.</summary>
public static class Names
{
    private static void Refuse(Action call)
    {
        try
        {
            call();
            Console.WriteLine("not refused");
        }
        catch (ModelException error)
        {
            Console.WriteLine("refused " + error.Message);
        }
    }

    private static string Say(bool fact) { return fact ? "true" : "false"; }

    public static void Main(string[] arguments)
    {
        using (var session = new TrainingSession(arguments[0]))
        {
            Refuse(session.SchedulerStep);
            session.SetSeed(3);
            session.SetLearningRate(0.25f);
            Console.WriteLine(FormattableString.Invariant($"rate {session.GetLearningRate()}"));
            session.RegisterLinearLRScheduler(0, 40, 0.1f);
            var inputs = new Array[] { new float[4 * 64], new long[4] };
            float before = session.EvalStep(inputs)[0].Item;
            for (int step = 0; step < 3; step++)
            {
                var names = session.TrainStep(inputs).Select(values => values.Tensor.Name);
                Console.WriteLine("names " + Say(names.SequenceEqual(session.TrainOutputNames())));
                session.OptimizerStep();
                session.LazyResetGrad();
                session.SchedulerStep();
            }
            var after = session.EvalStep(inputs);
            var told = after.Select(values => values.Tensor.Name);
            Console.WriteLine("names " + Say(told.SequenceEqual(session.EvalOutputNames())));
            Console.WriteLine("names " + Say(session.EvalInputNames().SequenceEqual(session.TrainInputNames())));
            Console.WriteLine("falls " + Say(after[0].Item < before));
            Console.WriteLine(FormattableString.Invariant($"rate {session.GetLearningRate()}"));
            session.SaveCheckpoint(arguments[1], true);
            session.ExportModelForInferencing(arguments[2], new[] { "output" });
            Refuse(() => session.ExportModelForInferencing(arguments[2], new[] { "x" }));
        }
    }
}
