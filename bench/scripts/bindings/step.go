// The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS.
package main

import (
	"fmt"
	"mlp"
	"os"
	"strconv"
	"time"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	blocks, steps := must(strconv.Atoi(os.Args[2])), must(strconv.Atoi(os.Args[3]))
	model := must(mlp.Create(os.Args[1]))
	x := make([]float32, model.InputInfo(mlp.PhaseTrain, 0).Bytes/4)
	y := make([]int64, model.InputInfo(mlp.PhaseTrain, 1).Bytes/8)
	least := int64(1) << 62
	for block := 0; block < blocks; block++ {
		begin := time.Now()
		for k := 0; k < steps; k++ {
			must(model.TrainStep(x, y))
			must(0, model.OptimizerStep())
			model.LazyResetGrad()
		}
		if took := time.Since(begin).Nanoseconds() / int64(steps); took < least {
			least = took
		}
	}
	fmt.Println(least)
}
