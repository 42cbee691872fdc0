// Program tokens is what the decoder of every binding is put through, in Go: tokens CHECKPOINT SCORES.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"mnist"
)

var scores bytes.Buffer

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func add(model *mnist.Model, tokens ...int32) {
	must(model.Append(tokens))
	must(binary.Write(&scores, binary.LittleEndian, model.Scores().([]float32)))
}

func refuse(err error) {
	var refused *mnist.Error
	if errors.As(err, &refused) {
		fmt.Printf("refused %v: %v\n", refused.Code, refused)
	} else {
		fmt.Println("not refused")
	}
}

func main() {
	model, err := mnist.Create(os.Args[1])
	must(err)
	add(model, 5, 7, 9, 11, 13)
	for token := int32(3); token < 13; token++ {
		add(model, token)
	}
	refuse(model.Append([]int32{100}))
	refuse(model.Append(make([]int32, 26)))
	refuse(model.Append(nil))
	refuse(model.Truncate(16))
	fmt.Printf("length %d of %d\n", model.Length(), model.Capacity())
	must(model.Truncate(7))
	fmt.Printf("forgotten %t\n", model.Scores() == nil)
	add(model, 8)
	must(os.WriteFile(os.Args[2], scores.Bytes(), 0o644))
}
