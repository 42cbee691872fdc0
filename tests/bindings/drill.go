// Program drill is what every binding is put through, in Go: drill CHECKPOINT STEPS OUT SESSIONS.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"mnist"
)

var (
	content         []byte
	samples, labels int
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func read(k int) (rate float32, x []float32, y []int64) {
	step := bytes.NewReader(content[k*(4+4*samples+8*labels):])
	x, y = make([]float32, samples), make([]int64, labels)
	for _, to := range []any{&rate, x, y} {
		if err := binary.Read(step, binary.LittleEndian, to); err != nil {
			panic(err)
		}
	}
	return
}

func bits(values any) int32 { return int32(math.Float32bits(values.([]float32)[0])) }

func train(model *mnist.Model, k int) int32 {
	rate, x, y := read(k)
	must(0, model.SetLearningRate(rate))
	loss := bits(must(model.TrainStep(x, y))[0])
	if !model.IsJoined() && k != 3 { // the fifth step adds to the gradients of the fourth
		must(0, model.OptimizerStep())
		model.LazyResetGrad()
	}
	return loss
}

func refuse(err error) {
	var refused *mnist.Error
	if errors.As(err, &refused) {
		fmt.Printf("refused %v: %v\n", refused.Code, refused)
	} else {
		fmt.Println("not refused")
	}
}

func resident() int {
	debug.FreeOSMemory() // of what the collector has not yet collected, or keeps for later
	text := string(must(os.ReadFile("/proc/self/statm")))
	return must(strconv.Atoi(strings.Fields(text)[1])) * 4096
}

func count(model *mnist.Model, index int) int {
	whole := 1
	for _, dim := range model.InputInfo(mnist.PhaseTrain, index).Dims {
		whole *= int(dim)
	}
	return whole
}

func main() {
	content = must(os.ReadFile(os.Args[2]))
	model := must(mnist.Create(os.Args[1]))
	samples, labels = count(model, 0), count(model, 1)
	for k := 0; k < 9; k++ {
		fmt.Println("loss", train(model, k))
	}
	_, x, y := read(9)
	fmt.Println("eval", bits(must(model.EvalStep(x, y))[0]))
	fmt.Println("predicted", len(must(model.Infer(x))[0].([]float32)))
	must(0, model.SetPropertyString("note", "gr\u00fc\u00df"))
	must(0, model.SetPropertyInt("count", 9007199254740993))
	fmt.Println("property", must(model.GetProperty(1)).Text, must(model.GetProperty(0)).Integer)

	before := must(model.Checkpoint(true))
	wrong := make([]int64, labels)
	for i := range wrong {
		wrong[i] = 10
	}
	_, err := model.TrainStep(x[1:], y)
	refuse(err)
	_, err = model.TrainStep(x, wrong)
	refuse(err)
	refuse(model.SetLearningRate(float32(math.NaN())))
	refuse(model.SetParameters([]float32{0}, true))
	_, err = mnist.CreateFrom(before[:len(before)/2])
	refuse(err)
	_, err = mnist.Create("missing")
	refuse(err)
	fmt.Println("unchanged", bytes.Equal(before, must(model.Checkpoint(true))))

	resumed := must(mnist.CreateFrom(before))
	refuse(resumed.OptimizerStep())
	fmt.Println("round trip", bytes.Equal(before, must(resumed.Checkpoint(true))))
	must(0, model.Save(os.Args[3], true))
	opened := must(mnist.Create(os.Args[3]))
	loss := train(model, 9)
	fmt.Println("loss", loss)
	fmt.Println("alike", train(resumed, 9) == loss && train(opened, 9) == loss)
	must(0, model.Save(os.Args[3], true))
	done, group := opened.Step(), sync.WaitGroup{}
	for thread := 0; thread < 2; thread++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for k := 0; k < 50; k++ {
				must(opened.TrainStep(x, y))
				must(0, opened.OptimizerStep())
			}
		}()
	}
	group.Wait()
	fmt.Println("turns", opened.Step()-done)
	values := must(model.Parameters(true))
	must(0, resumed.SetParameters(values, true))
	fmt.Println("parameters", len(values), reflect.DeepEqual(values, must(resumed.Parameters(true))))
	_, err = model.ParametersF64(true)
	refuse(err)
	must(0, os.WriteFile(os.Args[3]+".onnx", must(model.ExportModelBytes()), 0o600))
	must(0, model.SetStep(10))
	must(0, model.SetLinearRate(0.5, 20, 40))
	fmt.Println("rate", model.LearningRate())

	for _, each := range []*mnist.Model{model, resumed, opened} {
		each.Close()
	}
	_, err = model.TrainStep(x, y)
	refuse(err)

	sessions, first := must(strconv.Atoi(os.Args[4])), 0
	for k := 0; k < sessions; k++ {
		must(mnist.CreateFrom(before)).Close()
		if k == sessions/2 {
			first = resident()
		}
	}
	grown := resident() - first
	if grown < 0 {
		grown = 0
	}
	fmt.Println("grown", grown>>20)
}
