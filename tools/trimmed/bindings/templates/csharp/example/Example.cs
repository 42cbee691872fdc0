using System;
using System.Linq;
using Edgegrad.@Name@;

/// <summary>@purpose@ from C#: Example@arguments@.</summary>
public static class Example
{
/*@if train_step or infer@*/
    private static readonly Random Draw = new Random(1);

    // A batch for one input; a program would read its own here.
    private static Array MakeBatch(Tensor tensor)
    {
        var indices = Enumerable.Range(0, tensor.Elements);
        if (tensor.Dtype == Dtype.F32)
            return indices.Select(_ => (float)Draw.NextDouble()).ToArray();
        return indices.Select(_ => (long)Draw.Next(2)).ToArray();
    }

    private static Array[] MakeBatches(Model model, Phase phase)
    {
        return Enumerable.Range(0, model.InputCount(phase)).Select(i => MakeBatch(model.InputInfo(phase, i))).ToArray();
    }

/*@end@*/
/*@if train_step@*/
    private static void Train(Model model)
    {
        model.SetLearningRate(0.01f);
        for (int step = 1; step <= 20; step++)
        {
            float loss = model.TrainStep(MakeBatches(model, Phase.Train))[0].Item;
            if (!model.IsJoined())
                model.OptimizerStep();
            model.LazyResetGrad();
            Console.WriteLine("step " + step + ": loss " + loss);
        }
    }

/*@end@*/
/*@if infer !train_step@*/
    private static void Answer(Model model)
    {
        foreach (var output in model.Infer(MakeBatches(model, Phase.Infer)))
            Console.WriteLine(output.Tensor.Name + ": " + string.Join(" ", output.Floats.Take(3)) + " ...");
    }

/*@end@*/
/*@if append@*/
    // Continue a text, each time by the token with the largest score.
    private static void ContinueText(Model model)
    {
        string text = "text:";
        int token = 0;
        while (model.GetLength() < Math.Min(10, model.GetCapacity()))
        {
            text += " " + token;
            model.Append(new[] { token });
            var scores = model.Scores().Floats;
            token = Array.IndexOf(scores, scores.Max());
        }
        Console.WriteLine(text);
    }

/*@end@*/
    public static void Main(string[] arguments)
    {
        using (var model = Model.Create(arguments.FirstOrDefault()))
        {
/*@if train_step@*/
            Train(model);
            model.Save(arguments[1], true);
/*@end@*/
/*@if infer !train_step@*/
            Answer(model);
/*@end@*/
/*@if append@*/
            ContinueText(model);
/*@end@*/
        }
    }
}
