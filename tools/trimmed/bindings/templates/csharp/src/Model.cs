using System;
/*@if train_step or infer@*/
using System.Linq;
/*@end@*/
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;

namespace Edgegrad.@Name@
{
    /// <summary>The error of a refused call: the library's error code and its message.</summary>
    public class ModelException : Exception
    {
        internal ModelException(int code, string message) : base(message) { Code = (ErrorCode)code; }

        internal static ModelException Refuse(string message)
        {
            return new ModelException((int)ErrorCode.BadInput, message);
        }

        /// <summary>The reason.</summary>
        public ErrorCode Code { get; }
    }

    /// <summary>
    /// @purpose@. Each method calls the function of @name@.h with the same name. Refused
    /// calls throw a ModelException with the library's message. Calls from several threads wait for
    /// one another.
    /// </summary>
    public class Model : IDisposable
    {
        private IntPtr m;

        private Model(IntPtr made) { m = made; }

        /// <summary>Free a model that was not disposed.</summary>
        ~Model() { Native.@name@_destroy(m); }

/*@makers@*/

/*@members@*/

        /// <summary>Free the model.</summary>
        [MethodImpl(MethodImplOptions.Synchronized)]
        public void Dispose()
        {
            Native.@name@_destroy(m);
            m = IntPtr.Zero;
            GC.SuppressFinalize(this);
        }

        private IntPtr Live()
        {
            if (m == IntPtr.Zero)
                throw new ModelException((int)ErrorCode.BadState, "the model was disposed");
            return m;
        }

        private void Check(int code)
        {
            if (code != (int)ErrorCode.Ok)
                throw new ModelException(code, String(Native.@name@_message(m)));
        }

        private static Model Make(int code, IntPtr made, byte[] why)
        {
            if (code != (int)ErrorCode.Ok)
                throw new ModelException(code, Encoding.UTF8.GetString(why, 0, Array.IndexOf(why, (byte)0)));
            return new Model(made);
        }

        private static byte[] Bytes(string name, string value)
        {
            if (value != null && value.IndexOf('\0') >= 0)
                throw ModelException.Refuse(name + ": expected text without null characters");
            return value == null ? null : Encoding.UTF8.GetBytes(value + "\0");
        }

        private static UIntPtr Whole(string name, long value)
        {
            if (value < 0 || (UIntPtr.Size == 4 && value > uint.MaxValue))
                throw ModelException.Refuse(name + ": expected a size, got " + value);
            return (UIntPtr)(ulong)value;
        }

        private static UIntPtr Size(Array values)
        {
            return (UIntPtr)(values == null ? 0 : values.Length);
        }

        internal static string String(IntPtr address)
        {
            if (address == IntPtr.Zero)
                return "";
            int count = 0;
            while (Marshal.ReadByte(address, count) != 0)
                count++;
            var bytes = new byte[count];
            Marshal.Copy(address, bytes, 0, count);
            return Encoding.UTF8.GetString(bytes);
        }

        private static Values Read(IntPtr address, Tensor tensor)
        {
            if (address == IntPtr.Zero)
                return null;
            var bytes = new byte[tensor.Bytes];
            Marshal.Copy(address, bytes, 0, bytes.Length);
            var array = tensor.MakeArray();
            Buffer.BlockCopy(bytes, 0, array, 0, bytes.Length);
            return new Values(tensor, array);
        }

        private static void Write(IntPtr address, Tensor tensor, string place, Array array)
        {
            if (address == IntPtr.Zero || tensor == null)
                throw ModelException.Refuse(place + ": there is none at that index, or it takes no values");
            tensor.Check(place, array);
            var bytes = new byte[tensor.Bytes];
            Buffer.BlockCopy(array, 0, bytes, 0, bytes.Length);
            Marshal.Copy(bytes, 0, address, bytes.Length);
        }

/*@if train_step or infer@*/
        private void Place(Phase phase, Array[] inputs)
        {
            if (inputs == null || !HasPhase(phase))
                return; // the inputs are in place, or the step itself reports the error
            int count = InputCount(phase);
            if (inputs.Length != count)
            {
                var names = Enumerable.Range(0, count).Select(i => InputInfo(phase, i).Name);
                string wanted = count + " inputs [" + string.Join(", ", names) + "]";
                throw ModelException.Refuse("expected " + wanted + ", got " + inputs.Length);
            }
            for (int i = 0; i < count; i++)
            {
                var tensor = InputInfo(phase, i);
                tensor.Check("input '" + tensor.Name + "'", inputs[i]);
            }
            for (int i = 0; i < count; i++)
                SetInput(phase, i, inputs[i]);
        }

        private Values[] Outputs(Phase phase)
        {
            var values = new Values[OutputCount(phase)];
            for (int i = 0; i < values.Length; i++)
                values[i] = Output(phase, i);
            return values;
        }
/*@end@*/
    }

    internal static class Native
    {
/*@natives@*/
    }
}
