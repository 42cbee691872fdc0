using System;
using System.IO;
using Edgegrad.Mnist;

/// <summary>What the decoder of every binding is put through, in C#: Tokens CHECKPOINT SCORES.</summary>
public static class Tokens
{
    private static readonly MemoryStream scores = new MemoryStream();

    private static void Append(Model model, params int[] tokens)
    {
        model.Append(tokens);
        var values = (float[])model.Scores().Array;
        var bytes = new byte[4 * values.Length];
        Buffer.BlockCopy(values, 0, bytes, 0, bytes.Length);
        scores.Write(bytes, 0, bytes.Length);
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
            string name = error.Code == ErrorCode.BadLabel ? "BAD_LABEL" : "BAD_INPUT";
            Console.WriteLine("refused " + name + ": " + error.Message);
        }
    }

    public static void Main(string[] args)
    {
        using (var model = Model.Create(args[0]))
        {
            Append(model, 5, 7, 9, 11, 13);
            for (int token = 3; token < 13; token++)
                Append(model, token);
            Refuse(() => model.Append(new[] { 100 }));
            Refuse(() => model.Append(new int[26]));
            Refuse(() => model.Append(new int[0]));
            Refuse(() => model.Truncate(16));
            Console.WriteLine("length " + model.GetLength() + " of " + model.GetCapacity());
            model.Truncate(7);
            Console.WriteLine("forgotten " + (model.Scores() == null ? "true" : "false"));
            Append(model, 8);
        }
        File.WriteAllBytes(args[1], scores.ToArray());
    }
}
