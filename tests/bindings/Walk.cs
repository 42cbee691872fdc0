using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Text;
using System.Threading;
using Edgegrad.Mnist;

/// <summary>Every method with values that nobody should pass: Walk CHECKPOINT CALLS ROUNDS.</summary>
public static class Walk
{
    private const int RACES = 100;
    private static readonly object done = new object();

    private static readonly Dictionary<string, Func<Model, string[], object>> calls =
        new Dictionary<string, Func<Model, string[], object>>
        {
/*@rows@*/
        };

    private static string Text(string word)
    {
        if (word == "null")
            return null;
        var bytes = Enumerable.Range(0, word.Length / 2)
            .Select(i => Convert.ToByte(word.Substring(1 + 2 * i, 2), 16));
        return Encoding.UTF8.GetString(bytes.ToArray());
    }

    private static float Real(string word)
    {
        return BitConverter.ToSingle(BitConverter.GetBytes(uint.Parse(word)), 0);
    }

    private static byte[] Bytes(string word)
    {
        return word == "null" ? null : File.ReadAllBytes(word);
    }

    private static T[] Buffer<T>(string word)
    {
        return word == "null" ? null : new T[int.Parse(word)];
    }

    private static Array Numbers(string word)
    {
        if (word == "null")
            return null;
        var parts = word.Substring(2).Split('=');
        int count = int.Parse(parts[0]);
        if (word[0] == 'l')
            return Enumerable.Repeat(long.Parse(parts[1]), count).ToArray();
        float value = parts[1] == "nan" ? float.NaN : float.Parse(parts[1]);
        return Enumerable.Repeat(value, count).ToArray();
    }

    private static Array[] Inputs(string word)
    {
        if (word == "null")
            return null;
        return word == "none" ? new Array[0] : word.Split(',').Select(Numbers).ToArray();
    }

    private static string Tell(object answer)
    {
        if (answer == done)
            return "ok";
        if (answer is bool)
            return (bool)answer ? "ok 1" : "ok 0";
        return "ok " + (answer == null ? "none" : answer is int || answer is long ? answer : "some");
    }

    private static string Call(string[] row, Model m)
    {
        try
        {
            return Tell(calls[row[1]](m, row.Skip(2).ToArray()));
        }
        catch (ModelException error)
        {
            return (int)error.Code + " " + error.Message;
        }
        catch (Exception error)
        {
            return "other error: " + error.Message;
        }
    }

    /// <summary>Two threads walk on until the model has ended, which this one closes meanwhile.</summary>
    private static void Race(string[][] rows, string path, int wait)
    {
        var m = Model.Create(path);
        var others = new[] { 0, rows.Length / 2 }.Select(start => new Thread(() =>
        {
            for (int at = start; !Call(rows[at % rows.Length], m).StartsWith("5 the model was"); at++)
                continue;
        })).ToArray();
        foreach (var each in others)
            each.Start();
        Thread.Sleep(wait);
        m.Dispose();
        m.Dispose();
        foreach (var each in others)
            each.Join();
    }

    private static long Resident()
    {
        GC.Collect();
        return long.Parse(File.ReadAllText("/proc/self/statm").Split(' ')[1]) * 4096;
    }

    public static void Main(string[] arguments)
    {
        var live = Model.Create(arguments[0]);
        var models = new Dictionary<string, Model>
        {
            ["live"] = live,
            ["bare"] = Model.CreateFrom(null),
            ["ended"] = Model.Create(arguments[0]),
        };
        models["ended"].Dispose();
        models["ended"].Dispose();
        var rows = File.ReadAllLines(arguments[1]).Select(line => line.Split(' ')).ToArray();
        for (int i = 0; i < rows.Length; i++)
        {
            var before = live.Checkpoint();
            string said = Call(rows[i], models[rows[i][0]]);
            bool isSame = said.StartsWith("ok") || before.SequenceEqual(live.Checkpoint());
            Console.WriteLine(i + " " + said + (isSame ? "" : " changed"));
        }
        var racing = rows.Where(row => row[0] == "live").ToArray();
        for (int turn = 0; turn < RACES; turn++)
            Race(racing, arguments[0], turn % 4);
        Console.WriteLine("raced " + 2 * RACES);
        long first = 0;
        int rounds = int.Parse(arguments[2]);
        for (int turn = 0; turn < rounds; turn++)
        {
            foreach (var row in rows)
                Call(row, models[row[0]]);
            first = turn == rounds / 2 ? Resident() : first;
        }
        Console.WriteLine("grown " + (Math.Max(0, Resident() - first) >> 20));
    }
}
