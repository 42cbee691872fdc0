using System;
using System.Collections.Generic;
using System.Linq;

namespace Edgegrad.@Name@
{
    /// <summary>The same by the names of onnxruntime's TrainingSession, with arrays in place of its values.</summary>
    public sealed class TrainingSession : IDisposable
    {
        private long warmup, total;
        private float peak;
        private bool isScheduled;

        /// <summary>Read a checkpoint file.</summary>
        public TrainingSession(string checkpoint) { Model = Model.Create(checkpoint); }

        /// <summary>The model, with all that the names of onnxruntime do not cover.</summary>
        public Model Model { get; }

        public Values[] TrainStep(IEnumerable<Array> inputs) { return Model.TrainStep(inputs.ToArray()); }

        public Values[] EvalStep(IEnumerable<Array> inputs) { return Model.EvalStep(inputs.ToArray()); }

        public void OptimizerStep() { Model.OptimizerStep(); }

        public void LazyResetGrad() { Model.LazyResetGrad(); }

        public void SetSeed(long seed) { Model.SetSeed(seed); }

        public void SetLearningRate(float rate) { Model.SetLearningRate(rate); }

        public float GetLearningRate() { return Model.GetLearningRate(); }

        /// <summary>Let the rate rise to a peak in steps of warm-up, then fall to 0; see SchedulerStep.</summary>
        public void RegisterLinearLRScheduler(long warmupSteps, long totalSteps, float initialRate)
        {
            Model.SetLinearRate(initialRate, warmupSteps, totalSteps);
            warmup = warmupSteps;
            total = totalSteps;
            peak = initialRate;
            isScheduled = true;
        }

        /// <summary>Set the rate of the next optimizer step.</summary>
        public void SchedulerStep()
        {
            if (!isScheduled)
                throw new ModelException((int)ErrorCode.BadState, "there is no scheduler: register one");
            Model.SetLinearRate(peak, warmup, total);
        }

        public float[] ToBuffer(bool onlyTrainable) { return Model.Parameters(onlyTrainable); }

        public void FromBuffer(float[] values, bool onlyTrainable) { Model.SetParameters(values, onlyTrainable); }

        public void SaveCheckpoint(string path, bool includeOptimizerState) { Model.Save(path, includeOptimizerState); }

        public void Dispose() { Model.Dispose(); }
    }
}
