package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

const zeroHash = "0000000000000000000000000000000000000000000000000000000000000000"

// payload returns the bytes of an event with the given rest: what follows "type".
func payload(typ, rest string) string {
	return fmt.Sprintf(`{"v":1,"seq":9,"id":"%s","type":"%s","time":0,"prev":"%s",%s}`, sampleID, typ, zeroHash, rest)
}

func data(typ, data string) string { return payload(typ, `"data":`+data) }

func message(data string) string {
	return payload("user/message", `"data":`+data+`,"surfaceOp":"append"`)
}

const (
	plainMessage = `{"message":{"id":"m","role":"user","content":[],"source":{"kind":"user"}}}`
	title        = `"data":{"title":"x"}`
	claimed      = `,"inboxSeq":1,"inputId":"` + string(sampleID) + `"`
	pixelRef     = `{"sha256":"` + zeroHash + `","bytes":70,"mediaType":"image/png"}`
	pixel        = `{"type":"image","object":` + pixelRef + `,"width":1,"height":1}`
)

// auxiliary returns the data of an auxiliary llm/stream after turn and step, with the given rest of auxiliary.
func auxiliary(rest string) string {
	return `"attempt":1,"purpose":"title","auxiliary":{"config":{"provider":"p","model":"m"},` + rest + `},` + streamRest
}

const streamRest = `"header":1,"surface":{"nodes":0,"last":0,"generation":0},"codec":"c","body":{"bytes":1,"sha256":"` + zeroHash + `"}}`

// TestAccepted holds the payloads that TestDecodeRefuses changes: each must be fine as it stands.
func TestAccepted(t *testing.T) {
	for _, p := range []string{
		data("turn/start", `{"turn":1}`),
		data("turn/start", `{"turn":9223372036854775807}`),
		payload("session/title", title+`,"ignorable":true`),
		payload("session/title", title+`,"sourceEventSeqs":[8,1,3],"ignorable":true`),
		payload("vendor/new", `"data":[ 1, {"\u0041":1.0} ],"ignorable":true`),
		message(plainMessage),
		payload("user/message", `"data":`+plainMessage+`,"surfaceOp":{"op":"replace","start":9,"end":2}`),
		data("session/configured", `{"inboxSeq":18446744073709551615,"inputId":"`+string(sampleID)+`"}`),
		data("session/configured", `{}`),
		data("session/closed", `{"reason":""`+claimed+`}`),
		data("compaction/start", `{"compactionId":"k"`+claimed+`}`),
		data("compaction/start", `{"compactionId":"k","reason":"pressure"}`),
		data("turn/cancelled", `{"cause":""}`),
		data("turn/cancelled", `{"turn":1,"cause":"user","keepQueue":true`+claimed+`}`),
		data("input/dropped", `{`+claimed[1:]+`,"kind":"fork","cause":""}`),
		message(strings.TrimSuffix(plainMessage, `}`) + `,"inboxSeq":1}`),
		message(strings.TrimSuffix(plainMessage, `}`) + `,"inboxSeq":1,"delivery":"inject"}`),
		message(`{"message":{"id":"m","role":"user","content":[` + pixel + `],"source":{"kind":"user"}}}`),
		data("llm/stream", `{"turn":0,"step":0,`+auxiliary(`"directive":[]`)),
		data("llm/stream", `{"turn":3,"step":0,`+auxiliary(`"region":{"start":0,"end":1},"directive":[{"type":"text","text":""}]`)),
		data("llm/failed", `{"turn":0,"step":0,"attempt":1,"failure":{"message":"","code":"CANCELLED"}}`),
		data("llm/retry-started", `{"turn":0,"step":0,"retryId":"","retry":1}`),
		data("assistant/chunk", `{"turn":0,"step":0,"attempt":1,"chunks":[{"type":"block-end","index":0}]}`),
		data("request/images", `{"images":[{"image":"`+zeroHash+`","as":"inline","object":`+pixelRef+`}]}`),
		data("request/images", `{"images":[{"image":"`+zeroHash+`","as":"file","fileId":"f","width":1,"height":2}]}`),
		data("request/images", `{"images":[{"image":"`+zeroHash+`","as":"text","label":"none"}]}`),
		data("request/images", `{"images":[{"image":"`+zeroHash+`","as":"text","label":"none","provider":"p","expiresAt":1}]}`),
		data("assistant/chunk", `{"turn":0,"step":0,"attempt":1,"chunks":[{"type":"usage","usage":{"inputTokens":0,"outputTokens":0},"raw":null}]}`),
		data("assistant/chunk", `{"turn":0,"step":0,"attempt":1,"chunks":[{"type":"usage","usage":{"inputTokens":0,"outputTokens":0},"raw":{}}]}`),
		data("assistant/chunk", `{"turn":0,"step":0,"attempt":1,"chunks":[{"type":"usage","usage":{"inputTokens":0,"outputTokens":0},"raw":""}]}`),
		data("session/configured", `{"options":{"temperature":1e+21}}`),
		data("session/configured", `{"options":{"temperature":5e-324,"stop":[""]}}`),
		data("session/configured", `{"options":{"temperature":0}}`),
		data("session/created", `{"format":1}`),
		data("session/created", `{"format":1,"seedLength":9223372036854775807}`),
		data("session/created", `{"format":1,"labels":[{"name":"`+"\ue000"+`","value":""},{"name":"`+"\U0001f600"+`","value":""}]}`),
		data("turn/end", `{"turn":1,"reason":{"kind":"aborted","cause":""}}`),
		data("compaction/summary", `{"compactionId":"k","region":{"start":1,"end":1},"shadowed":[],"shadowedTokens":0,"summary":[],"provider":"","model":""}`),
		payload("vendor/new", `"data":null,"ignorable":true`),
		payload("-/0/-/-", `"data":0,"ignorable":true`),
		data("session/created", `{"format":1,"labels":[{"name":"a","value":""},{"name":"b","value":""}]}`),
		data("session/closed", `{"reason":"\u0000\u001f\b\t\n\f\r\"\\/\ud83d \ude00`+"\u007f\u2028\U0001f600"+`"}`),
	} {
		if !canonicalOrRefused(t, []byte(p)) {
			_, err := events.Decode([]byte(p))
			t.Errorf("%v\n%s", err, p)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := data("turn/start", `{"turn":1}`)
	closed := func(s string) string { return data("session/closed", `{"reason":`+s+`}`) }
	options := func(s string) string { return data("session/configured", `{"options":`+s+`}`) }
	block := func(s string) string {
		return message(`{"message":{"id":"m","role":"user","content":[` + s + `],"source":{"kind":"user"}}}`)
	}
	result := func(s string) string {
		return payload("tool/result", `"data":{"turn":1,"step":1,"message":{"id":"m","role":"user","content":[`+s+
			`],"source":{"kind":"tool"}}},"surfaceOp":"append"`)
	}
	surface := func(s string) string { return payload("user/message", `"data":`+plainMessage+`,"surfaceOp":`+s) }
	sources := func(s string) string {
		return payload("session/title", title+`,"sourceEventSeqs":`+s+`,"ignorable":true`)
	}
	chunks := func(s string) string {
		return data("assistant/chunk", `{"turn":1,"step":1,"attempt":1,"chunks":[`+s+`]}`)
	}
	usage := func(s string) string { return chunks(`{"type":"usage","usage":{` + s + `}}`) }
	header := func(s, reason string) string {
		return data("request/header", `{"header":{"config":{"provider":"p","model":"m"}`+s+`},"reason":"`+reason+`"}`)
	}
	ref := `{"sha256":"` + zeroHash + `","bytes":0,"mediaType":"text/plain"}`
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"empty":                    {``, events.ErrSyntax},
		"no object":                {`[]`, events.ErrSyntax},
		"null":                     {`null`, events.ErrSyntax},
		"white space before":       {" " + good, events.ErrSyntax},
		"white space after":        {good + "\n", events.ErrSyntax},
		"white space between":      {strings.Replace(good, `,"seq"`, `, "seq"`, 1), events.ErrSyntax},
		"white space after colon":  {strings.Replace(good, `"v":1`, `"v": 1`, 1), events.ErrSyntax},
		"trailing bytes":           {good + good, events.ErrSyntax},
		"byte order mark":          {"\ufeff" + good, events.ErrSyntax},
		"cut":                      {good[:len(good)-1], events.ErrSyntax},
		"fields swapped":           {strings.Replace(good, `"v":1,"seq":9`, `"seq":9,"v":1`, 1), events.ErrSyntax},
		"field twice":              {strings.Replace(good, `"v":1`, `"v":1,"v":1`, 1), events.ErrSyntax},
		"data twice":               {payload("turn/start", `"data":{"turn":1},"data":{"turn":1}`), events.ErrSyntax},
		"data field twice":         {data("turn/start", `{"turn":1,"turn":1}`), events.ErrSyntax},
		"unknown field":            {payload("turn/start", `"data":{"turn":1},"x":1`), events.ErrSyntax},
		"unknown data field":       {data("turn/start", `{"turn":1,"x":1}`), events.ErrSyntax},
		"field missing":            {strings.Replace(good, `"time":0,`, ``, 1), events.ErrSyntax},
		"data field missing":       {data("turn/start", `{}`), events.ErrSyntax},
		"escaped field name":       {strings.Replace(good, `"seq"`, `"s\u0065q"`, 1), events.ErrSyntax},
		"data null":                {data("turn/start", `null`), events.ErrSyntax},
		"version 2":                {strings.Replace(good, `"v":1`, `"v":2,"new":0`, 1), events.ErrVersion},
		"version 0":                {strings.Replace(good, `"v":1`, `"v":0`, 1), events.ErrVersion},
		"log format 2":             {data("session/created", `{"format":2,"new":1}`), events.ErrVersion},
		"sequence 0":               {strings.Replace(good, `"seq":9`, `"seq":0`, 1), events.ErrInvalid},
		"leading zero":             {strings.Replace(good, `"seq":9`, `"seq":09`, 1), events.ErrSyntax},
		"negative":                 {strings.Replace(good, `"time":0`, `"time":-1`, 1), events.ErrSyntax},
		"minus zero":               {strings.Replace(good, `"time":0`, `"time":-0`, 1), events.ErrSyntax},
		"fraction":                 {strings.Replace(good, `"time":0`, `"time":0.0`, 1), events.ErrSyntax},
		"exponent":                 {strings.Replace(good, `"time":0`, `"time":1e3`, 1), events.ErrSyntax},
		"plus":                     {strings.Replace(good, `"time":0`, `"time":+1`, 1), events.ErrSyntax},
		"number as string":         {strings.Replace(good, `"seq":9`, `"seq":"9"`, 1), events.ErrSyntax},
		"64 bits overflow":         {data("session/configured", `{"inboxSeq":18446744073709551616,"inputId":"`+string(sampleID)+`"}`), events.ErrInvalid},
		"far overflow":             {data("session/configured", `{"inboxSeq":99999999999999999999999999,"inputId":"`+string(sampleID)+`"}`), events.ErrInvalid},
		"63 bits overflow":         {data("turn/start", `{"turn":9223372036854775808}`), events.ErrInvalid},
		"turn 0":                   {data("turn/start", `{"turn":0}`), events.ErrInvalid},
		"id in lower case":         {strings.Replace(good, "01JZ", "01jz", 1), events.ErrInvalid},
		"id beyond 128 bits":       {strings.Replace(good, "01JZ", "81JZ", 1), events.ErrInvalid},
		"id with U":                {strings.Replace(good, "01JZ", "01JU", 1), events.ErrInvalid},
		"short id":                 {strings.Replace(good, "01JZ", "01J", 1), events.ErrInvalid},
		"hash in upper case":       {strings.Replace(good, `"prev":"0`, `"prev":"A`, 1), events.ErrSyntax},
		"short hash":               {strings.Replace(good, `"prev":"0`, `"prev":"`, 1), events.ErrSyntax},
		"header delta":             {data("request/header-delta", `{"anything":1}`), events.ErrLegacy},
		"ignorable header delta":   {payload("request/header-delta", `"data":{},"ignorable":true`), events.ErrLegacy},
		"reason fallback":          {header("", "fallback"), events.ErrLegacy},
		"unknown type":             {data("vendor/new", `{}`), events.ErrUnknownType},
		"unknown, ignorable false": {payload("vendor/new", `"data":{},"ignorable":false`), events.ErrSyntax},
		"unknown on the surface":   {payload("vendor/new", `"data":{},"surfaceOp":"append","ignorable":true`), events.ErrInvalid},
		"unknown, bad data":        {payload("vendor/new", `"data":{]},"ignorable":true`), events.ErrSyntax},
		"unknown, data not UTF-8":  {payload("vendor/new", "\"data\":\"\xff\",\"ignorable\":true"), events.ErrSyntax},
		"unknown, deep data":       {payload("vendor/new", `"data":`+strings.Repeat("[", 513)+strings.Repeat("]", 513)+`,"ignorable":true`), events.ErrSyntax},
		"required type ignorable":  {payload("turn/start", `"data":{"turn":1},"ignorable":true`), events.ErrInvalid},
		"title not ignorable":      {payload("session/title", title), events.ErrInvalid},
		"malformed type":           {data("Turn/start", `{}`), events.ErrInvalid},
		"type ends in slash":       {data("turn/", `{}`), events.ErrInvalid},
		"type of five words":       {data("a/b/c/d/e", `{}`), events.ErrInvalid},
		"type with a dot":          {data("a.b", `{}`), events.ErrInvalid},
		"type with a wildcard":     {data("a/>", `{}`), events.ErrInvalid},
		"long type":                {data(strings.Repeat("a", 65), `{}`), events.ErrInvalid},
		"empty type":               {data("", `{}`), events.ErrInvalid},

		"surface missing":          {payload("user/message", `"data":`+plainMessage), events.ErrInvalid},
		"surface where none is":    {payload("turn/start", `"data":{"turn":1},"surfaceOp":"append"`), events.ErrInvalid},
		"surface op unknown":       {surface(`"insert"`), events.ErrSyntax},
		"surface null":             {surface(`null`), events.ErrSyntax},
		"surface op append object": {surface(`{"op":"append"}`), events.ErrSyntax},
		"replace without end":      {surface(`{"op":"replace","start":1}`), events.ErrSyntax},
		"replace fields swapped":   {surface(`{"op":"replace","end":1,"start":1}`), events.ErrSyntax},
		"sources empty":            {sources(`[]`), events.ErrSyntax},
		"sources zero":             {sources(`[0]`), events.ErrInvalid},
		"sources itself":           {sources(`[9]`), events.ErrInvalid},
		"sources later":            {sources(`[10]`), events.ErrInvalid},
		"sources twice":            {sources(`[3,3]`), events.ErrInvalid},
		"sources twice apart":      {sources(`[3,1,2,3]`), events.ErrInvalid},
		"sources comma":            {sources(`[3,]`), events.ErrSyntax},
		"sources after ignorable":  {payload("session/title", title+`,"ignorable":true,"sourceEventSeqs":[1]`), events.ErrSyntax},

		"escaped slash":            {closed(`"\/"`), events.ErrSyntax},
		"needless escape":          {closed(`"\u0041"`), events.ErrSyntax},
		"upper-case escape":        {closed(`"\u000B"`), events.ErrSyntax},
		"upper-case U":             {closed(`"\U000b"`), events.ErrSyntax},
		"long for short escape":    {closed(`"\u000a"`), events.ErrSyntax},
		"escaped quote as \\u":     {closed(`"\u0022"`), events.ErrSyntax},
		"escaped backslash as \\u": {closed(`"\u005c"`), events.ErrSyntax},
		"escaped DEL":              {closed(`"\u007f"`), events.ErrSyntax},
		"escaped U+2028":           {closed(`"\u2028"`), events.ErrSyntax},
		"escaped pair":             {closed(`"\ud83d\ude00"`), events.ErrSyntax},
		"escaped pair after one":   {closed(`"\ud83d\ud83d\ude00"`), events.ErrSyntax},
		"upper-case surrogate":     {closed(`"\uD83D"`), events.ErrSyntax},
		"raw surrogate":            {closed("\"\xed\xa0\xbd\""), events.ErrSyntax},
		"raw surrogate, escapes":   {closed("\"\\n\xed\xa0\xbd\""), events.ErrSyntax},
		"not UTF-8":                {closed("\"\xff\""), events.ErrSyntax},
		"not UTF-8, escapes":       {closed("\"\\n\xff\""), events.ErrSyntax},
		"raw newline":              {closed("\"\n\""), events.ErrSyntax},
		"raw newline, escapes":     {closed("\"\\t\n\""), events.ErrSyntax},
		"raw NUL":                  {closed("\"\x00\""), events.ErrSyntax},
		"string does not end":      {strings.TrimSuffix(closed(`"x`), `}}`), events.ErrSyntax},
		"escape does not end":      {strings.TrimSuffix(closed(`"\u12`), `}}`), events.ErrSyntax},
		"no string":                {closed(`1`), events.ErrSyntax},

		"empty optional string":   {options(`{"model":""}`), events.ErrSyntax},
		"zero optional number":    {options(`{"maxTokens":0}`), events.ErrSyntax},
		"empty optional list":     {options(`{"stop":[]}`), events.ErrSyntax},
		"empty optional object":   {options(`{}`), events.ErrSyntax},
		"zero inboxSeq":           {data("session/configured", `{"inboxSeq":0,"inputId":"`+string(sampleID)+`"}`), events.ErrSyntax},
		"zero maxSteps":           {options(`{"maxSteps":0}`), events.ErrSyntax},
		"maxSteps out of order":   {options(`{"maxSteps":1,"tools":["a"]}`), events.ErrSyntax},
		"false flag":              {header(`,"adapterDefaults":{"reasoningEffort":false}`, "initial"), events.ErrSyntax},
		"empty adapterDefaults":   {header(`,"adapterDefaults":{}`, "initial"), events.ErrSyntax},
		"default of absent field": {header(`,"adapterDefaults":{"maxTokens":true}`, "initial"), events.ErrInvalid},
		"system twice":            {header(`,"system":"x","systemObject":`+ref, "initial"), events.ErrInvalid},
		"tools twice":             {header(`,"tools":[{"name":"a","description":"","parameters":{}}],"toolsObject":`+ref, "initial"), events.ErrInvalid},
		"tool without name":       {header(`,"tools":[{"name":"","description":"","parameters":{}}]`, "initial"), events.ErrInvalid},
		"tool parameters missing": {header(`,"tools":[{"name":"a","description":"","parameters":}]`, "initial"), events.ErrSyntax},
		"header reason unknown":   {header("", "other"), events.ErrInvalid},
		"model empty":             {data("request/header", `{"header":{"config":{"provider":"p","model":""}},"reason":"initial"}`), events.ErrInvalid},
		"number 1.0":              {options(`{"temperature":1.0}`), events.ErrInvalid},
		"number 1e21":             {options(`{"temperature":1e21}`), events.ErrInvalid},
		"number -0":               {options(`{"temperature":-0}`), events.ErrInvalid},
		"number beyond float":     {options(`{"temperature":1e999}`), events.ErrInvalid},
		"number of 17+ digits":    {options(`{"temperature":0.1000000000000000055511151231257827}`), events.ErrInvalid},
		"number as a string":      {options(`{"temperature":"1"}`), events.ErrInvalid},
		"number as a word":        {options(`{"temperature":null}`), events.ErrInvalid},
		"number NaN":              {options(`{"temperature":NaN}`), events.ErrSyntax},
		"options system twice":    {options(`{"system":"x","systemObject":` + ref + `}`), events.ErrInvalid},
		"labels not sorted":       {data("session/created", `{"format":1,"labels":[{"name":"b","value":""},{"name":"a","value":""}]}`), events.ErrInvalid},
		"seedLength of 64 bits":   {data("session/created", `{"format":1,"seedLength":9223372036854775808}`), events.ErrInvalid},
		"greatest seedLength":     {data("session/created", `{"format":1,"seedLength":18446744073709551615}`), events.ErrInvalid},
		"seedLength 0":            {data("session/created", `{"format":1,"seedLength":0}`), events.ErrSyntax},
		"label twice":             {data("session/created", `{"format":1,"labels":[{"name":"a","value":"1"},{"name":"a","value":"2"}]}`), events.ErrInvalid},
		"ref without media type":  {block(`{"type":"text","object":{"sha256":"` + zeroHash + `","bytes":0,"mediaType":""}}`), events.ErrInvalid},
		"text and object":         {block(`{"type":"text","text":"x","object":` + ref + `}`), events.ErrSyntax},

		"block unknown":          {block(`{"type":"video","text":""}`), events.ErrInvalid},
		"block out of place":     {block(`{"type":"reasoning","text":""}`), events.ErrInvalid},
		"role unknown":           {message(strings.Replace(plainMessage, `"user","content"`, `"system","content"`, 1)), events.ErrInvalid},
		"role out of place":      {message(strings.Replace(plainMessage, `"user","content"`, `"assistant","content"`, 1)), events.ErrInvalid},
		"message without id":     {message(strings.Replace(plainMessage, `"id":"m"`, `"id":""`, 1)), events.ErrInvalid},
		"source unknown":         {message(strings.Replace(plainMessage, `"kind":"user"`, `"kind":"x"`, 1)), events.ErrInvalid},
		"result without block":   {result(``), events.ErrInvalid},
		"result of two":          {result(`{"type":"tool-result","toolCallId":"c","content":[],"isError":false},{"type":"tool-result","toolCallId":"c","content":[],"isError":false}`), events.ErrInvalid},
		"result without call":    {result(`{"type":"tool-result","toolCallId":"","content":[],"isError":false}`), events.ErrInvalid},
		"result with text":       {result(`{"type":"text","text":"x"}`), events.ErrInvalid},
		"result in result":       {result(`{"type":"tool-result","toolCallId":"c","content":[{"type":"tool-result","toolCallId":"c","content":[],"isError":false}],"isError":false}`), events.ErrInvalid},
		"isError no bool":        {result(`{"type":"tool-result","toolCallId":"c","content":[],"isError":0}`), events.ErrSyntax},
		"call without id":        {data("tool/call", `{"turn":1,"step":1,"callId":"","name":"n","arguments":""}`), events.ErrInvalid},
		"stream without codec":   {data("llm/stream", `{"turn":1,"step":1,"attempt":1,"purpose":"loop","header":1,"surface":{"nodes":0,"last":0,"generation":0},"codec":"","body":{"bytes":1,"sha256":"`+zeroHash+`"}}`), events.ErrInvalid},
		"chunks empty":           {chunks(``), events.ErrInvalid},
		"chunk unknown":          {chunks(`{"type":"x"}`), events.ErrInvalid},
		"chunk of an image":      {chunks(`{"type":"block-start","index":0,"blockType":"image"}`), events.ErrInvalid},
		"chunk with other field": {chunks(`{"type":"block-end","index":0,"texts":[]}`), events.ErrSyntax},
		"cache write alone":      {usage(`"inputTokens":1,"cacheWriteTokens":1,"outputTokens":1`), events.ErrSyntax},
		"reasoning beyond out":   {usage(`"inputTokens":1,"outputTokens":1,"reasoningTokens":2`), events.ErrInvalid},
		"tokens beyond 2^53":     {usage(`"inputTokens":9007199254740993,"outputTokens":1`), events.ErrInvalid},
		"negative tokens":        {usage(`"inputTokens":-1,"outputTokens":1`), events.ErrSyntax},
		"fractional tokens":      {usage(`"inputTokens":1.5,"outputTokens":1`), events.ErrSyntax},
		"failure code":           {data("llm/failed", `{"turn":1,"step":1,"attempt":1,"failure":{"message":"","code":"rate"}}`), events.ErrInvalid},
		"turn end cause missing": {data("turn/end", `{"turn":1,"reason":{"kind":"aborted"}}`), events.ErrSyntax},
		"turn end with cause":    {data("turn/end", `{"turn":1,"reason":{"kind":"completed","cause":""}}`), events.ErrSyntax},
		"compaction start id":    {data("compaction/start", `{"compactionId":""}`), events.ErrInvalid},
		"compaction summary id":  {data("compaction/summary", `{"compactionId":"","region":{"start":1,"end":1},"shadowed":[],"shadowedTokens":0,"summary":[],"provider":"","model":""}`), events.ErrInvalid},
		"compaction end id":      {data("compaction/end", `{"compactionId":"","outcome":"failed"}`), events.ErrInvalid},
		"turn end unknown":       {data("turn/end", `{"turn":1,"reason":{"kind":"x"}}`), events.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}

func checkRefused(t *testing.T, payload string, want error) {
	t.Helper()
	e, err := events.Decode([]byte(payload))
	if !errors.Is(err, want) {
		t.Fatalf("got %+v, %v, want %v\n%s", e, err, want, clip(payload))
	}
	var de *events.DecodeError
	if !errors.As(err, &de) || de.Offset < 0 || de.Offset > len(payload) {
		t.Errorf("no place in %v", err)
	}
}

func clip(s string) string { return s[:min(len(s), 400)] }

func TestDecodeErrorNamesThePlace(t *testing.T) {
	p := data("session/closed", `{"reason":"ab\/c"}`)
	_, err := events.Decode([]byte(p))
	var de *events.DecodeError
	if !errors.As(err, &de) || de.Offset != strings.Index(p, `\/`) || de.Field != "reason" {
		t.Errorf("%+v, want the offset of the escape and its field", de)
	}
}

func TestTooLarge(t *testing.T) {
	big := strings.Repeat("a", events.MaxEventBytes)
	e := events.Event{Seq: 1, ID: sampleID, Body: &events.SessionClosed{Reason: big}}
	if _, err := events.Encode(&e); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("Encode: %v", err)
	}
	if _, ok := e.Hash(); ok {
		t.Error("an event that was refused has a hash")
	}
	in := events.Input{ID: sampleID, Kind: events.InputClose, Reason: big}
	if _, err := events.EncodeInput(&in); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("EncodeInput: %v", err)
	}
	if _, err := events.Decode([]byte(big + "a")); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("Decode: %v", err)
	}
	if _, err := events.DecodeInput([]byte(big + "a")); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("DecodeInput: %v", err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	user := func(m events.Message) *events.UserMessage { return &events.UserMessage{Message: m} }
	okMessage := events.Message{ID: "m", Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser}}
	withBlock := func(b events.Block) *events.UserMessage {
		m := okMessage
		m.Content = []events.Block{b}
		return user(m)
	}
	for name, c := range map[string]struct {
		event events.Event
		want  error
	}{
		"no body":          {events.Event{Seq: 1, ID: sampleID}, events.ErrInvalid},
		"sequence 0":       {events.Event{ID: sampleID, Body: &events.TurnStart{Turn: 1}}, events.ErrInvalid},
		"no id":            {events.Event{Seq: 1, Body: &events.TurnStart{Turn: 1}}, events.ErrInvalid},
		"long seed":        {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionCreated{SeedLength: 1 << 63}}, events.ErrInvalid},
		"turn 0":           {events.Event{Seq: 1, ID: sampleID, Body: &events.TurnStart{}}, events.ErrInvalid},
		"negative turn":    {events.Event{Seq: 1, ID: sampleID, Body: &events.TurnStart{Turn: -1}}, events.ErrInvalid},
		"negative time":    {events.Event{Seq: 1, ID: sampleID, Time: -1, Body: &events.TurnStart{Turn: 1}}, events.ErrInvalid},
		"header delta":     {events.Event{Seq: 1, ID: sampleID, Ignorable: true, Body: &events.Unknown{Name: "request/header-delta", Data: `{}`}}, events.ErrLegacy},
		"reason fallback":  {events.Event{Seq: 1, ID: sampleID, Body: &events.RequestHeader{Header: sampleHeader(), Reason: "fallback"}}, events.ErrLegacy},
		"change of what":   {events.Event{Seq: 1, ID: sampleID, Body: &events.RequestHeader{Header: sampleHeader(), Reason: events.HeaderChange, ChangedBy: []events.ConfigChange{{Extension: "x"}}}}, events.ErrInvalid},
		"unknown required": {events.Event{Seq: 1, ID: sampleID, Body: &events.Unknown{Name: "vendor/new", Data: `{}`}}, events.ErrUnknownType},
		"unknown known":    {events.Event{Seq: 1, ID: sampleID, Ignorable: true, Body: &events.Unknown{Name: events.TypeTurnStart, Data: `{"turn":1}`}}, events.ErrInvalid},
		"unknown bad data": {events.Event{Seq: 1, ID: sampleID, Ignorable: true, Body: &events.Unknown{Name: "vendor/new", Data: `{} `}}, events.ErrInvalid},
		"bad text":         {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionClosed{Reason: "\xff"}}, events.ErrInvalid},
		"split pair":       {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionClosed{Reason: loneHigh + loneLow}}, events.ErrInvalid},
		"title":            {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionTitle{}}, events.ErrInvalid},
		"no surface":       {events.Event{Seq: 1, ID: sampleID, Body: user(okMessage)}, events.ErrInvalid},
		"surface kind":     {events.Event{Seq: 1, ID: sampleID, Body: user(okMessage), Surface: events.SurfaceOp{Kind: 3}}, events.ErrInvalid},
		"append region":    {events.Event{Seq: 1, ID: sampleID, Body: user(okMessage), Surface: events.SurfaceOp{Kind: events.SurfaceAppend, Region: events.Region{Start: 1}}}, events.ErrInvalid},
		"source itself":    {events.Event{Seq: 2, ID: sampleID, Sources: []uint64{2}, Body: &events.TurnStart{Turn: 1}}, events.ErrInvalid},
		"source twice":     {events.Event{Seq: 9, ID: sampleID, Sources: []uint64{3, 1, 3}, Body: &events.TurnStart{Turn: 1}}, events.ErrInvalid},
		"text with object": {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(events.Block{Type: events.BlockText, Text: "x", Object: sampleRef("x")})}, events.ErrInvalid},
		"text with a call": {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(events.Block{Type: events.BlockText, Arguments: "x"})}, events.ErrInvalid},
		"unknown block":    {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(events.Block{Type: "video"})}, events.ErrInvalid},
		"text with width":  {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(events.Block{Type: events.BlockText, Width: 1})}, events.ErrInvalid},
		"image with text":  {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(func() events.Block { b := sampleImageBlock(""); b.Text = "x"; return b }())}, events.ErrInvalid},
		"image of nothing": {events.Event{Seq: 1, ID: sampleID, Surface: events.AppendOp(), Body: withBlock(events.Block{Type: events.BlockImage, Width: 1, Height: 1})}, events.ErrInvalid},
		"half a claim":     {events.Event{Seq: 1, ID: sampleID, Body: &events.TurnCancelled{Claim: events.Claim{InboxSeq: 1}}}, events.ErrInvalid},
		"dropped nothing":  {events.Event{Seq: 1, ID: sampleID, Body: &events.InputDropped{Kind: events.InputPrompt}}, events.ErrInvalid},
		"no auxiliary":     {events.Event{Seq: 1, ID: sampleID, Body: &events.LLMStream{Turn: 1, Step: 1, Attempt: 1, Purpose: events.PurposeTitle, Codec: "c"}}, events.ErrInvalid},
		"no image":         {events.Event{Seq: 1, ID: sampleID, Body: &events.RequestImages{}}, events.ErrInvalid},
		"cache unreported": {events.Event{Seq: 1, ID: sampleID, Body: &events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: sampleFailure, UsageReported: true, Usage: events.Usage{CacheReadTokens: 1}}}, events.ErrInvalid},
		"usage unreported": {events.Event{Seq: 1, ID: sampleID, Body: &events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: sampleFailure, Usage: sampleUsage}}, events.ErrInvalid},
		"failure of none":  {events.Event{Seq: 1, ID: sampleID, Body: &events.TurnEnd{Turn: 1, Kind: events.TurnCompleted, Failure: sampleFailure}}, events.ErrInvalid},
		"cause of none":    {events.Event{Seq: 1, ID: sampleID, Body: &events.TurnEnd{Turn: 1, Kind: events.TurnError, Failure: sampleFailure, Cause: "x"}}, events.ErrInvalid},
		"chunk field":      {events.Event{Seq: 1, ID: sampleID, Body: &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: []events.Chunk{{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishStop}, Index: 1}}}}, events.ErrInvalid},
		"compaction id":    {events.Event{Seq: 1, ID: sampleID, Body: &events.CompactionStart{}}, events.ErrInvalid},
		"number":           {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionConfigured{Options: events.Options{Temperature: "1.0"}}}, events.ErrInvalid},
		"number no JSON":   {events.Event{Seq: 1, ID: sampleID, Body: &events.SessionConfigured{Options: events.Options{Temperature: "Inf"}}}, events.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := events.Encode(&c.event)
			if !errors.Is(err, c.want) || b != nil {
				t.Fatalf("got %s, %v, want %v", b, err, c.want)
			}
			if _, ok := c.event.Hash(); ok {
				t.Error("an event that was refused has a hash")
			}
		})
	}
}

func TestUnknownKeptByteForByte(t *testing.T) {
	raw := "{\"z\": 1.0,\n\"a\" :[\"\\/\\u0041\\uD83D\", 123456789012345678901234567890]}"
	p := []byte(payload("vendor/new", `"data":`+raw+`,"ignorable":true`))
	e, err := events.Decode(p)
	if err != nil {
		t.Fatal(err)
	}
	u, ok := e.Body.(*events.Unknown)
	if !ok || u.Name != "vendor/new" || string(u.Data) != raw {
		t.Fatalf("got %+v", e.Body)
	}
	if again, err := events.Encode(&e); err != nil || !bytes.Equal(again, p) {
		t.Fatalf("%v\n%s\n%s", err, p, again)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{``, `{}`, `[`, `[]]`, `[] `, `[],`, `[{}]`, `[{"name":"a","description":"","parameters":{}},]`, `[]},"x":[`, `null`} {
		if got, err := events.ParseTools([]byte(s)); !errors.Is(err, events.ErrSyntax) {
			t.Errorf("ParseTools(%q) = %v, %v", s, got, err)
		}
	}
	twice := `{"name":"a","description":"","parameters":{ }}`
	for s, want := range map[string]int{`[]`: 0, `[` + twice + `,` + twice + `]`: 2} {
		if got, err := events.ParseTools([]byte(s)); err != nil || len(got) != want {
			t.Errorf("ParseTools(%q) = %v, %v", s, got, err)
		}
	}
	if _, err := events.AppendTools(nil, []events.Tool{{Name: "a", Parameters: "{"}}); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("AppendTools: %v", err)
	}
	for _, s := range []string{"", zeroHash[1:], zeroHash + "0", strings.Repeat("A", 64), strings.Repeat("g", 64)} {
		if got, err := events.ParseHash(s); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("ParseHash(%q) = %v, %v", s, got, err)
		}
	}
	if h, err := events.ParseHash(events.HashPayload(nil).String()); err != nil || h != events.HashPayload(nil) {
		t.Errorf("ParseHash: %v, %v", h, err)
	}
	if _, err := events.ParseID(strings.Repeat("x", 63) + "\u00e9\u00e9"); err == nil || !strings.Contains(err.Error(), `xx..." is`) {
		t.Errorf("a long value is not cut at the end of a character: %v", err)
	}
	for s, want := range map[string]bool{
		string(sampleID): true, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ": true, "00000000000000000000000000": true,
		"8ZZZZZZZZZZZZZZZZZZZZZZZZZ": false, "": false, "01JZZZZZZZZZZZZZZZZZZZZZZI": false, "01JZZZZZZZZZZZZZZZZZZZZZZ": false,
		"01JZZZZZZZZZZZZZZZZZZZZZZ>": false, "01jzzzzzzzzzzzzzzzzzzzzzzz": false,
	} {
		if id, err := events.ParseID(s); (err == nil) != want || want != (string(id) == s && id.Valid() && s != "") {
			t.Errorf("ParseID(%q) = %q, %v", s, id, err)
		}
		if _, err := events.ParseID(s); err != nil && !errors.Is(err, events.ErrInvalid) {
			t.Errorf("ParseID(%q): %v", s, err)
		}
	}
}
