// Program example: @purpose@ from Go: go run ./example@arguments@
package main

import (
	"fmt"
	"log"
//@if train_step or infer@
	"math/rand"
//@end@
	"os"
//@if train_step or infer@
	"reflect"
//@end@

	"@name@"
)

//@if train_step or infer@
// makeBatches makes up a batch for each input; a real program reads its data here.
func makeBatches(model *@name@.Model, phase @name@.Phase) []any {
	batches := make([]any, model.InputCount(phase))
	for i := range batches {
		batches[i] = model.InputInfo(phase, i).MakeSlice()
		values := reflect.ValueOf(batches[i])
		for k := 0; k < values.Len(); k++ {
			switch value := values.Index(k); {
			case value.CanFloat():
				value.SetFloat(rand.Float64())
			case value.CanInt():
				value.SetInt(rand.Int63n(2))
			case value.CanUint():
				value.SetUint(uint64(rand.Intn(2)))
			default:
				value.SetBool(rand.Intn(2) == 1)
			}
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
		fmt.Printf("step %d: loss %v\n", step, reflect.ValueOf(outputs[0]).Index(0))
	}
	return model.Save(to, true)
}

//@end@
//@if infer !train_step@
func answer(model *@name@.Model) error {
	outputs, err := model.Infer(makeBatches(model, @name@.PhaseInfer)...)
	for i, output := range outputs {
		values, end := reflect.ValueOf(output), ""
		if values.Len() > 4 {
			values, end = values.Slice(0, 4), " ..."
		}
		fmt.Printf("%s: %v%s\n", model.OutputInfo(@name@.PhaseInfer, i).Name, values, end)
	}
	return err
}

//@end@
//@if append@
// continueText appends the token with the largest score to a text, again and again.
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
//@if train_step@
	if len(os.Args) != 3 {
		log.Fatal("usage: example CHECKPOINT NEW_CHECKPOINT")
	}
//@end@
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
