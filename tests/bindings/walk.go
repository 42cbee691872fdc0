// Program walk calls every method with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS.
package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mnist"
)

const races = 100

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func takeText(word string) string { return string(must(hex.DecodeString(word[1:]))) }

func takeInt(word string) int { return must(strconv.Atoi(word)) }

func takeLong(word string) int64 { return must(strconv.ParseInt(word, 10, 64)) }

func takeFloat(word string) float32 {
	return math.Float32frombits(uint32(must(strconv.ParseUint(word, 10, 32))))
}

func takeBytes(word string) []byte {
	if word == "null" {
		return nil
	}
	return must(os.ReadFile(word))
}

func takeBuffer[T any](word string) []T {
	if word == "null" {
		return nil
	}
	return make([]T, takeInt(word))
}

func fill[T float32 | int64](count int, value T) []T {
	made := make([]T, count)
	for i := range made {
		made[i] = value
	}
	return made
}

func takeNumbers(word string) any {
	if word == "null" {
		return nil
	}
	count, value, _ := strings.Cut(word[2:], "=")
	if word[0] == 'f' {
		return fill(takeInt(count), float32(must(strconv.ParseFloat(value, 32))))
	}
	return fill(takeInt(count), takeLong(value))
}

func takeInputs(word string) []any {
	if word == "null" {
		return nil
	}
	if word == "none" {
		return []any{}
	}
	var made []any
	for _, each := range strings.Split(word, ",") {
		made = append(made, takeNumbers(each))
	}
	return made
}

// tell returns what a line has of a result.
func tell(value any) string {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return " 1"
		}
		return " 0"
	case reflect.Int, reflect.Int64:
		return fmt.Sprintf(" %d", value)
	}
	if value == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return " none"
	}
	return " some"
}

var calls = map[string]func(m *mnist.Model, w []string) (string, error){
/*@rows@*/
}

func call(row []string, m *mnist.Model) string {
	answer, err := calls[row[1]](m, row[2:])
	var refused *mnist.Error
	if errors.As(err, &refused) {
		return fmt.Sprintf("%d %s", int(refused.Code), refused.Message)
	}
	if err != nil {
		return "other error: " + err.Error()
	}
	return "ok" + answer
}

// race counts the goroutines that went on with calls until they were told that the model has ended,
// which another one closed meanwhile.
func race(rows [][]string, path string) int {
	m := must(mnist.Create(path))
	var ended int32
	var group sync.WaitGroup
	for start := 0; start < 2; start++ {
		group.Add(1)
		go func(at int) {
			defer group.Done()
			for said := ""; !strings.HasPrefix(said, "5 the model was closed"); at++ {
				said = call(rows[at%len(rows)], m)
			}
			atomic.AddInt32(&ended, 1)
		}(start * len(rows) / 2)
	}
	time.Sleep(time.Duration(rand.Intn(3000)) * time.Microsecond)
	m.Close()
	m.Close()
	group.Wait()
	return int(ended)
}

func resident() int {
	debug.FreeOSMemory() // of what the collector has not yet collected, or keeps for later
	text := string(must(os.ReadFile("/proc/self/statm")))
	return must(strconv.Atoi(strings.Fields(text)[1])) * 4096
}

func main() {
	live, ended := must(mnist.Create(os.Args[1])), must(mnist.Create(os.Args[1]))
	models := map[string]*mnist.Model{
		"live": live, "bare": must(mnist.CreateFrom(nil)), "ended": ended,
	}
	ended.Close()
	ended.Close()
	var rows [][]string
	for _, line := range strings.Split(string(must(os.ReadFile(os.Args[2]))), "\n") {
		if line != "" {
			rows = append(rows, strings.Split(line, " "))
		}
	}
	for i, row := range rows {
		before := must(live.Checkpoint(true))
		said := call(row, models[row[0]])
		if !strings.HasPrefix(said, "ok") && !bytes.Equal(before, must(live.Checkpoint(true))) {
			said += " changed"
		}
		fmt.Println(i, said)
	}
	var racing [][]string
	for _, row := range rows {
		if row[0] == "live" {
			racing = append(racing, row)
		}
	}
	raced := 0
	for turn := 0; turn < races; turn++ {
		raced += race(racing, os.Args[1])
	}
	fmt.Println("raced", raced)
	first, rounds := 0, takeInt(os.Args[3])
	for turn := 0; turn < rounds; turn++ {
		for _, row := range rows {
			call(row, models[row[0]])
		}
		if turn == rounds/2 {
			first = resident()
		}
	}
	fmt.Println("grown", max(0, resident()-first)>>20)
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
