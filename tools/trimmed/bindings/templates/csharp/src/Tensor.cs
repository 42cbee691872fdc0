using System;
using System.Linq;
using System.Runtime.InteropServices;

namespace Edgegrad.@Name@
{
    /// <summary>Name, type and shape of an input, an output or a parameter.</summary>
    public sealed class Tensor
    {
        [StructLayout(LayoutKind.Sequential)]
        private struct Facts
        {
            public IntPtr Name;
            public int Dtype;
            public int Rank;
            public IntPtr Dims;
            public UIntPtr Bytes;
            public int Trainable;
        }

        private Tensor(Facts facts)
        {
            Name = Model.String(facts.Name);
            Dtype = (Dtype)facts.Dtype;
            Dims = new long[facts.Rank];
            if (facts.Rank > 0)
                Marshal.Copy(facts.Dims, Dims, 0, facts.Rank);
            Bytes = (long)facts.Bytes;
            Trainable = facts.Trainable != 0;
        }

        public string Name { get; }
        public Dtype Dtype { get; }
        public long[] Dims { get; }
        public long Bytes { get; }
        public bool Trainable { get; }

        /// <summary>The number of elements.</summary>
        public int Elements => checked((int)Dims.Aggregate(1L, (product, dim) => product * dim));

        internal static Tensor Read(IntPtr address)
        {
            return address == IntPtr.Zero ? null : new Tensor(Marshal.PtrToStructure<Facts>(address));
        }

        private Type Type()
        {
            switch (Dtype)
            {
                case Dtype.F32: return typeof(float);
                case Dtype.F64: return typeof(double);
                case Dtype.I64: return typeof(long);
                case Dtype.U64: return typeof(ulong);
                case Dtype.I32: return typeof(int);
                case Dtype.U32: return typeof(uint);
                case Dtype.I16: return typeof(short);
                case Dtype.U16: return typeof(ushort);
                case Dtype.I8: return typeof(sbyte);
                case Dtype.Bool: return typeof(bool);
                default: return typeof(byte);
            }
        }

        internal Array MakeArray() { return Array.CreateInstance(Type(), Elements); }

        internal void Check(string place, Array array)
        {
            if (array != null && array.GetType().GetElementType() == Type() && array.Length == Elements)
                return;
            string wanted = Type().Name + "[] of " + Elements + " elements";
            string got = array == null ? "null" : array.GetType().Name + " of " + array.Length + " elements";
            throw ModelException.Refuse(place + ": expected " + wanted + ", got " + got);
        }
    }

    /// <summary>Values of an output or a parameter: a copy, in an array of the tensor's type.</summary>
    public sealed class Values
    {
        internal Values(Tensor tensor, Array array)
        {
            Tensor = tensor;
            Array = array;
        }

        public Tensor Tensor { get; }
        public Array Array { get; }

        /// <summary>The values as floats.</summary>
        public float[] Floats => Array as float[]
            ?? throw ModelException.Refuse("'" + Tensor.Name + "' has other values than floats");

        /// <summary>The first value, such as the loss.</summary>
        public float Item => Floats[0];
    }
}
