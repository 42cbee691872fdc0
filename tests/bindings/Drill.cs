using System;
using System.IO;
using System.Text.RegularExpressions;
using System.Linq;
using System.Text;
using System.Threading;
using Edgegrad.Mnist;

/// <summary>What every binding is put through, in C#: Drill CHECKPOINT STEPS OUT SESSIONS.</summary>
public static class Drill
{
    private static byte[] steps;
    private static int samples, labels;

    private static T[] Take<T>(int at, int count, int size)
    {
        var values = new T[count];
        Buffer.BlockCopy(steps, at, values, 0, count * size);
        return values;
    }

    private static int Start(int k) { return k * (4 + 4 * samples + 8 * labels); }

    private static float[] X(int k) { return Take<float>(Start(k) + 4, samples, 4); }

    private static long[] Y(int k) { return Take<long>(Start(k) + 4 + 4 * samples, labels, 8); }

    private static int Bits(float value) { return BitConverter.ToInt32(BitConverter.GetBytes(value), 0); }

    private static int Train(Model model, int k)
    {
        model.SetLearningRate(Take<float>(Start(k), 1, 4)[0]);
        float loss = model.TrainStep(X(k), Y(k))[0].Item;
        if (!model.IsJoined() && k != 3) // the fifth step adds to the gradients of the fourth
        {
            model.OptimizerStep();
            model.LazyResetGrad();
        }
        return Bits(loss);
    }

    private static void Refuse(Action call)
    {
        try
        {
            call();
            Console.WriteLine("not refused");
        }
        catch (ModelException error)
        {
            string code = Regex.Replace(error.Code.ToString(), "(?<=[a-z])(?=[A-Z])", "_").ToUpperInvariant();
            Console.WriteLine("refused " + code + ": " + error.Message);
        }
    }

    private static string Say(bool fact) { return fact ? "true" : "false"; }

    private static long Resident()
    {
        return long.Parse(File.ReadAllText("/proc/self/statm").Split(' ')[1]) * 4096;
    }

    public static void Main(string[] arguments)
    {
        Stream stream = Console.OpenStandardOutput(); // in UTF-8, where there is no console, too
        Console.SetOut(new StreamWriter(stream, new UTF8Encoding(false)) { AutoFlush = true });
        steps = File.ReadAllBytes(arguments[1]);
        var model = Model.Create(arguments[0]);
        samples = model.InputInfo(Phase.Train, 0).Elements;
        labels = model.InputInfo(Phase.Train, 1).Elements;
        for (int k = 0; k < 9; k++)
            Console.WriteLine("loss " + Train(model, k));
        float[] x = X(9);
        long[] y = Y(9);
        Console.WriteLine("eval " + Bits(model.EvalStep(x, y)[0].Item));
        Console.WriteLine("predicted " + model.Infer(x)[0].Floats.Length);
        model.SetPropertyString("note", "gr\u00fc\u00df");
        model.SetPropertyInt("count", 9007199254740993);
        Console.WriteLine("property " + model.GetProperty(1).Text + " " + model.GetProperty(0).Integer);

        byte[] before = model.Checkpoint();
        Refuse(() => model.TrainStep(x.Skip(1).ToArray(), y));
        Refuse(() => model.TrainStep(x, y.Select(_ => 10L).ToArray()));
        Refuse(() => model.SetLearningRate(float.NaN));
        Refuse(() => model.SetParameters(new float[1], true));
        Refuse(() => Model.CreateFrom(before.Take(before.Length / 2).ToArray()));
        Refuse(() => Model.Create("missing"));
        Console.WriteLine("unchanged " + Say(before.SequenceEqual(model.Checkpoint())));

        var resumed = Model.CreateFrom(before);
        Refuse(() => resumed.OptimizerStep());
        Console.WriteLine("round trip " + Say(before.SequenceEqual(resumed.Checkpoint())));
        model.Save(arguments[2], true);
        var opened = Model.Create(arguments[2]);
        int loss = Train(model, 9);
        Console.WriteLine("loss " + loss);
        Console.WriteLine("alike " + Say(Train(resumed, 9) == loss && Train(opened, 9) == loss));
        model.Save(arguments[2], true);
        long done = opened.GetStep();
        ThreadStart turns = () =>
        {
            for (int k = 0; k < 50; k++)
            {
                opened.TrainStep(x, y);
                opened.OptimizerStep();
            }
        };
        var other = new Thread(turns);
        other.Start();
        turns();
        other.Join();
        Console.WriteLine("turns " + (opened.GetStep() - done));
        float[] values = model.Parameters();
        resumed.SetParameters(values, true);
        Console.WriteLine("parameters " + values.Length + " " + Say(values.SequenceEqual(resumed.Parameters())));
        Refuse(() => model.ParametersF64());
        File.WriteAllBytes(arguments[2] + ".onnx", model.ExportModel());

        using (var session = new TrainingSession(arguments[2]))
        {
            session.RegisterLinearLRScheduler(20, 40, 0.5f);
            session.TrainStep(new Array[] { x, y });
            session.OptimizerStep();
            session.LazyResetGrad();
            session.SchedulerStep();
            Console.WriteLine(FormattableString.Invariant($"rate {session.GetLearningRate()}"));
        }

        foreach (var each in new[] { model, resumed, opened })
            each.Dispose();
        Refuse(() => model.TrainStep(x, y));

        int sessions = int.Parse(arguments[3]);
        long first = 0;
        for (int k = 0; k < sessions; k++)
        {
            Model.CreateFrom(before).Dispose();
            first = k == sessions / 2 ? Resident() : first;
        }
        Console.WriteLine("grown " + (Math.Max(0, Resident() - first) >> 20));
    }
}
