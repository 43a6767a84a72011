package events_test

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// The payload of an event is its only encoding, and its hash is what the next event carries.
func ExampleEncode() {
	first := events.Event{
		Seq: 1, ID: "01JGFJJZ00A1B2C3D4E5F6G7H8", Time: 1735689600000,
		Body: &events.SessionCreated{Cwd: "/src"},
	}
	payload, err := events.Encode(&first)
	if err != nil {
		fmt.Println(err)
		return
	}
	hash, _ := first.Hash()
	fmt.Printf("%s\n%s\n", payload[len(payload)-33:], hash)
	// Output:
	// "data":{"format":1,"cwd":"/src"}}
	// d6ad650264ff568d148b57548029adbd49c594064b457b5c7ad3fb417391dd86
}

// A reader checks the chain by comparing each event's Prev with the hash of the one before.
func ExampleDecode() {
	_, err := events.Decode([]byte(`{"v":1, "seq":1}`))
	var where *events.DecodeError
	fmt.Println(errors.Is(err, events.ErrSyntax), errors.As(err, &where))
	fmt.Println(err)
	// Output:
	// true true
	// decode event: byte 6, field "seq": not canonical: want field "seq"
}

// Two deltas of a stream may hold one half each of a surrogate pair.
func ExampleJoinText() {
	high, _ := events.Unquote([]byte(`"\ud83d"`))
	low, _ := events.Unquote([]byte(`"\ude00"`))
	fmt.Println(events.JoinText(high, low))
	// Output: 😀
}

// What a tool wrote comes back byte for byte, although it is no UTF-8.
func ExampleTextFromBytes() {
	text := events.TextFromBytes([]byte("caf\xe9"))
	fmt.Printf("%s %q\n", events.AppendQuote(nil, text), events.BytesFromText(text))
	// Output: "caf\udce9" "caf\xe9"
}
