// Program hostile makes calls with texts that C would end too early: hostile CHECKPOINT.
package main

import (
	"errors"
	"fmt"
	"os"

	"mnist"
)

func main() {
	model, err := mnist.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	_, created := mnist.Create(os.Args[1] + "\x00")
	_, empty := mnist.CreateFrom([]byte{})
	refusals := []error{
		created,
		empty,
		model.Save("a\x00b", true),
		model.SetPropertyInt("a\x00b", 1),
		model.SetPropertyString("name", "a\x00b"),
		model.SetParameter(99, []float32{1}),
	}
	for _, err := range refusals {
		var refused *mnist.Error
		fmt.Println(errors.As(err, &refused), err)
	}
	fmt.Println(model.FindParameter("a\x00b"), model.PropertyCount())
	// What is beyond 32 bits is not what its lower half would be.
	fmt.Println(model.ParameterInfo(1<<32), model.InputInfo(mnist.Phase(1<<32), 0), model.HasPhase(1<<32))
	if _, err := os.Stat("a"); err == nil {
		fmt.Println("a file has been written")
	}
}
