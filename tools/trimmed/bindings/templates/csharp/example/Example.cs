using System;
using System.Linq;
using Edgegrad.@Name@;

/// <summary>@purpose@ from C#: Example@arguments@.</summary>
public static class Example
{
/*@if train_step or infer@*/
    private static readonly Random Draw = new Random(1);

    // Make up a batch for one input; a real program reads its data here.
    private static Array MakeBatch(Tensor tensor)
    {
        var values = tensor.MakeArray();
        var type = values.GetType().GetElementType();
        bool isFloat = tensor.Dtype == Dtype.F32 || tensor.Dtype == Dtype.F64;
        for (int i = 0; i < values.Length; i++)
            values.SetValue(Convert.ChangeType(isFloat ? Draw.NextDouble() : Draw.Next(2), type), i);
        return values;
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
            Console.WriteLine(output);
    }

/*@end@*/
/*@if append@*/
    // Continue a text: append the token with the largest score, again and again.
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
    public static int Main(string[] arguments)
    {
/*@if train_step@*/
        if (arguments.Length != 2)
        {
            Console.Error.WriteLine("usage: Example CHECKPOINT NEW_CHECKPOINT");
            return 2;
        }
/*@end@*/
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
        return 0;
    }
}
