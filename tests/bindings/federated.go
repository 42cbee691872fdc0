// Program federated is a device of a federation in Go: federated CHECKPOINT X LABELS FOLDER
// carries out the requests in a folder, in the order of their names.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"mnist"
)

type device struct {
	checkpoint []byte
	x          []float32
	labels     []int64
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// work makes the steps of a phase over all samples; it returns how many the last epoch had, and
// their mean loss.
func (d *device) work(m *mnist.Model, phase mnist.Phase, epochs int) (int64, float32, error) {
	batch := int(m.Batch())
	width := len(d.x) / len(d.labels)
	step := m.EvalStep
	if phase == mnist.PhaseTrain {
		step = m.TrainStep
	}
	var sum float32
	count := 0
	for epoch := 0; epoch < epochs; epoch++ {
		sum, count = 0, 0
		for ; count+batch <= len(d.labels); count += batch {
			x := d.x[count*width : (count+batch)*width]
			outputs, err := step(x, d.labels[count:count+batch])
			if err == nil && phase == mnist.PhaseTrain && !m.IsJoined() {
				err = m.OptimizerStep()
			}
			if err != nil {
				return 0, 0, err
			}
			m.LazyResetGrad()
			sum += outputs[0].([]float32)[0] * float32(batch)
		}
	}
	return int64(count), sum / float32(count), nil
}

// answer carries out a request; what is not a request has no answer, but an error.
func (d *device) answer(request []byte) ([]byte, error) {
	m, err := mnist.CreateFrom(d.checkpoint)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var count int64
	var loss float32
	reason := ""
	asked, err := m.TakeRequest(request)
	if err == nil {
		count, loss, err = d.work(m, asked.Phase, asked.Epochs)
	}
	if err == nil && asked.KeepsState != 0 {
		d.checkpoint, err = m.Checkpoint(true)
	}
	if err != nil {
		reason = err.Error()
	}
	return m.Answer(request, count, loss, reason)
}

func main() {
	content := must(os.ReadFile(os.Args[2]))
	d := device{checkpoint: must(os.ReadFile(os.Args[1])), x: make([]float32, len(content)/4)}
	must(0, binary.Read(bytes.NewReader(content), binary.LittleEndian, d.x))
	content = must(os.ReadFile(os.Args[3]))
	d.labels = make([]int64, len(content)/8)
	must(0, binary.Read(bytes.NewReader(content), binary.LittleEndian, d.labels))
	for _, path := range must(filepath.Glob(filepath.Join(os.Args[4], "*"))) {
		answer, err := d.answer(must(os.ReadFile(path)))
		if err != nil {
			fmt.Printf("%s: ModelError\n", filepath.Base(path))
		} else {
			fmt.Printf("%s: taken\n", filepath.Base(path))
			must(0, os.WriteFile(path+".answer", answer, 0o600))
		}
	}
}
