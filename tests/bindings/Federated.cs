using System;
using System.IO;
using Edgegrad.Mnist;

/// <summary>
/// A device of a federation in C#: Federated CHECKPOINT X LABELS FOLDER carries out the requests in
/// a folder, in the order of their names.
/// </summary>
public static class Federated
{
    private static byte[] checkpoint;
    private static float[] x;
    private static long[] labels;

    private static T[] Read<T>(string path, int size)
    {
        byte[] content = File.ReadAllBytes(path);
        var values = new T[content.Length / size];
        Buffer.BlockCopy(content, 0, values, 0, content.Length);
        return values;
    }

    private static T[] Slice<T>(T[] values, int begin, int count)
    {
        var part = new T[count];
        Array.Copy(values, begin, part, 0, count);
        return part;
    }

    // Make the steps of a phase over all samples: how many the last epoch had, and their mean loss.
    private static float Work(Model model, Phase phase, int epochs, out long samples)
    {
        int batch = (int)model.GetBatch(), width = x.Length / labels.Length, count = 0;
        float sum = 0;
        for (int epoch = 0; epoch < epochs; epoch++)
        {
            sum = count = 0;
            for (; count + batch <= labels.Length; count += batch)
            {
                float[] part = Slice(x, count * width, batch * width);
                long[] classes = Slice(labels, count, batch);
                Values[] made = phase == Phase.Train
                    ? model.TrainStep(part, classes) : model.EvalStep(part, classes);
                if (phase == Phase.Train && !model.IsJoined())
                    model.OptimizerStep();
                model.LazyResetGrad();
                sum += made[0].Item * batch;
            }
        }
        samples = count;
        return sum / count;
    }

    // Carry out a request; what is not a request has no answer, but an exception.
    private static byte[] Answer(byte[] request)
    {
        using (var model = Model.CreateFrom(checkpoint))
        {
            long count = 0;
            float loss = 0;
            string reason = "";
            try
            {
                var asked = model.TakeRequest(request);
                loss = Work(model, asked.Phase, asked.Epochs, out count);
                if (asked.KeepsState != 0)
                    checkpoint = model.Checkpoint();
            }
            catch (ModelException error)
            {
                reason = error.Message;
            }
            var answer = model.Answer(request, count, loss, reason);
            return answer;
        }
    }

    public static void Main(string[] arguments)
    {
        checkpoint = File.ReadAllBytes(arguments[0]);
        x = Read<float>(arguments[1], 4);
        labels = Read<long>(arguments[2], 8);
        string[] paths = Directory.GetFiles(arguments[3]);
        Array.Sort(paths, StringComparer.Ordinal);
        foreach (string path in paths)
        {
            string said = "taken";
            try
            {
                File.WriteAllBytes(path + ".answer", Answer(File.ReadAllBytes(path)));
            }
            catch (ModelException)
            {
                said = "ModelError";
            }
            Console.WriteLine(Path.GetFileName(path) + ": " + said);
        }
    }
}
