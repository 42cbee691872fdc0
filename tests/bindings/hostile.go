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
	refusals := []error{
		created,
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
	if _, err := os.Stat("a"); err == nil {
		fmt.Println("a file has been written")
	}
}
