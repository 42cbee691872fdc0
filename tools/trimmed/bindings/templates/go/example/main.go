// Program example: @purpose@ from Go: go run ./example@arguments@
package main

import (
	"fmt"
	"log"
//@if train_step or infer@
	"math/rand"
//@end@
	"os"

	"@name@"
)

//@if train_step or infer@
// makeBatches returns a batch for each input; a program would read its own here.
func makeBatches(model *@name@.Model, phase @name@.Phase) []any {
	batches := make([]any, model.InputCount(phase))
	for i := range batches {
		tensor, count := model.InputInfo(phase, i), 1
		for _, dim := range tensor.Dims {
			count *= int(dim)
		}
		floats, labels := make([]float32, count), make([]int64, count)
		for k := range floats {
			floats[k], labels[k] = rand.Float32(), rand.Int63n(2)
		}
		batches[i] = any(labels)
		if tensor.Dtype == @name@.DtypeF32 {
			batches[i] = floats
		}
	}
	return batches
}

//@end@
//@if train_step@
func train(model *@name@.Model, to string) error {
	if err := model.SetLearningRate(0.01); err != nil {
		return err
	}
	for step := 1; step <= 20; step++ {
		outputs, err := model.TrainStep(makeBatches(model, @name@.PhaseTrain)...)
		if err == nil && !model.IsJoined() {
			err = model.OptimizerStep()
		}
		if err != nil {
			return err
		}
		model.LazyResetGrad()
		fmt.Printf("step %d: loss %v\n", step, outputs[0].([]float32)[0])
	}
	return model.Save(to, true)
}

//@end@
//@if infer !train_step@
func answer(model *@name@.Model) error {
	outputs, err := model.Infer(makeBatches(model, @name@.PhaseInfer)...)
	for i, output := range outputs {
		fmt.Printf("%s: %v ...\n", model.OutputInfo(@name@.PhaseInfer, i).Name, output.([]float32)[:3])
	}
	return err
}

//@end@
//@if append@
// continueText continues a text, each time by the token with the largest score.
func continueText(model *@name@.Model) error {
	token := 0
	fmt.Print("text:")
	for model.Length() < 10 && model.Length() < model.Capacity() {
		fmt.Print(" ", token)
		if err := model.Append([]int32{int32(token)}); err != nil {
			return err
		}
		scores := model.Scores().([]float32)
		token = 0
		for i, score := range scores {
			if score > scores[token] {
				token = i
			}
		}
	}
	fmt.Println()
	return nil
}

//@end@
func run() error {
	model, err := @name@.CreateFrom(nil)
	if len(os.Args) > 1 {
		model, err = @name@.Create(os.Args[1])
	}
	if err != nil {
		return err
	}
	defer model.Close()
//@if train_step@
	if err := train(model, os.Args[2]); err != nil {
		return err
	}
//@end@
//@if infer !train_step@
	if err := answer(model); err != nil {
		return err
	}
//@end@
//@if append@
	if err := continueText(model); err != nil {
		return err
	}
//@end@
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
