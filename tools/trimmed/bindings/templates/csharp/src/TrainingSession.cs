/*@if train_step@*/
using System;
using System.Collections.Generic;
using System.Linq;

namespace Edgegrad.@Name@
{
    /// <summary>The methods of onnxruntime's TrainingSession, with arrays instead of its values.</summary>
    public sealed class TrainingSession : IDisposable
    {
        private long warmup, total;
        private float peak;
        private bool isScheduled;

        /// <summary>Read a checkpoint file.</summary>
        public TrainingSession(string checkpoint) { Model = Model.Create(checkpoint); }

        /// <summary>The model, for everything that onnxruntime's methods do not cover.</summary>
        public Model Model { get; }

        /// <summary>Run forward and backward on the inputs, and return the outputs.</summary>
        public Values[] TrainStep(IEnumerable<Array> inputs) { return Model.TrainStep(inputs.ToArray()); }

/*@if eval_step@*/
        /// <summary>Run the evaluation model on the inputs, and return the outputs.</summary>
        public Values[] EvalStep(IEnumerable<Array> inputs) { return Model.EvalStep(inputs.ToArray()); }

/*@end@*/
        /// <summary>Update the parameters from the gradients.</summary>
        public void OptimizerStep() { Model.OptimizerStep(); }

        /// <summary>Make the next train step overwrite the gradients.</summary>
        public void LazyResetGrad() { Model.LazyResetGrad(); }

        /// <summary>Set the seed of random numbers, for example for dropout.</summary>
        public void SetSeed(long seed) { Model.SetSeed(seed); }

        /// <summary>Set the learning rate of updates.</summary>
        public void SetLearningRate(float rate) { Model.SetLearningRate(rate); }

        /// <summary>Return the learning rate of the next update.</summary>
        public float GetLearningRate() { return Model.GetLearningRate(); }

        /// <summary>Schedule a rate that rises to a peak during warm-up, then falls to 0; see SchedulerStep.</summary>
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

        /// <summary>Return the values of all parameters, one parameter after another.</summary>
        public float[] ToBuffer(bool onlyTrainable) { return Model.Parameters(onlyTrainable); }

        /// <summary>Set the values of all parameters, one parameter after another.</summary>
        public void FromBuffer(float[] values, bool onlyTrainable) { Model.SetParameters(values, onlyTrainable); }

        /// <summary>Write a checkpoint file.</summary>
        public void SaveCheckpoint(string path, bool includeOptimizerState) { Model.Save(path, includeOptimizerState); }

/*@if export_model@*/
        /// <summary>Write the inference model as an ONNX file; the build has chosen its outputs.</summary>
        public void ExportModelForInferencing(string path, IReadOnlyCollection<string> outputNames)
        {
            var names = Names(Phase.Infer, Model.OutputCount(Phase.Infer), Model.OutputInfo);
            if (!new HashSet<string>(names).SetEquals(outputNames))
                throw ModelException.Refuse("this build exports " + string.Join(", ", names) + ", and not "
                    + string.Join(", ", outputNames) + ": build --output");
            Model.ExportModel(path);
        }

/*@end@*/
        /// <summary>Return the names of the inputs of train steps.</summary>
        public IReadOnlyList<string> TrainInputNames()
        {
            return Names(Phase.Train, Model.InputCount(Phase.Train), Model.InputInfo);
        }

        /// <summary>Return the names of the outputs of train steps.</summary>
        public IReadOnlyList<string> TrainOutputNames()
        {
            return Names(Phase.Train, Model.OutputCount(Phase.Train), Model.OutputInfo);
        }

/*@if eval_step@*/
        /// <summary>Return the names of the inputs of eval steps.</summary>
        public IReadOnlyList<string> EvalInputNames()
        {
            return Names(Phase.Eval, Model.InputCount(Phase.Eval), Model.InputInfo);
        }

        /// <summary>Return the names of the outputs of eval steps.</summary>
        public IReadOnlyList<string> EvalOutputNames()
        {
            return Names(Phase.Eval, Model.OutputCount(Phase.Eval), Model.OutputInfo);
        }

/*@end@*/
        /// <summary>Free the model.</summary>
        public void Dispose() { Model.Dispose(); }

        private static string[] Names(Phase phase, int count, Func<Phase, int, Tensor> describe)
        {
            return Enumerable.Range(0, count).Select(i => describe(phase, i).Name).ToArray();
        }
    }
}
/*@end@*/
