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

        /// <summary>The name in the model.</summary>
        public string Name { get; }

        /// <summary>The type of the elements.</summary>
        public Dtype Dtype { get; }

        /// <summary>The shape.</summary>
        public long[] Dims { get; }

        /// <summary>The size of the values.</summary>
        public long Bytes { get; }

        /// <summary>Whether the tensor is a parameter that training changes.</summary>
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

        /// <summary>Return a new array of the tensor's type and size, such as a float[].</summary>
        public Array MakeArray() { return Array.CreateInstance(Type(), Elements); }

        /// <summary>Return name, type and shape.</summary>
        public override string ToString() { return Name + ": " + Dtype + Shape; }

        private string Shape => "[" + string.Join(", ", Dims) + "]";

        internal void Check(string place, Array array)
        {
            if (array != null && array.GetType().GetElementType() == Type() && array.Length == Elements)
                return;
            string wanted = Type().Name + "[] of " + Elements + " elements, " + Shape;
            string got = array == null ? "null" : array.GetType().Name + " of " + array.Length + " elements";
            throw ModelException.Refuse(place + ": expected " + wanted + ", got " + got);
        }
    }

    /// <summary>The values of an output or a parameter: a copy, in an array of the tensor's type.</summary>
    public sealed class Values
    {
        internal Values(Tensor tensor, Array array)
        {
            Tensor = tensor;
            Array = array;
        }

        /// <summary>Name, type and shape.</summary>
        public Tensor Tensor { get; }

        /// <summary>A float[], long[] or another array, depending on the tensor's type.</summary>
        public Array Array { get; }

        /// <summary>The values as floats.</summary>
        public float[] Floats => Array as float[]
            ?? throw ModelException.Refuse("'" + Tensor.Name + "' does not have float values");

        /// <summary>The first value as a float, such as the loss.</summary>
        public float Item => Convert.ToSingle(Array.GetValue(0));

        /// <summary>Return the name and the first values.</summary>
        public override string ToString()
        {
            string first = string.Join(" ", Array.Cast<object>().Take(4));
            return Tensor.Name + ": " + first + (Array.Length > 4 ? " ..." : "");
        }
    }
}
