package events_test

import (
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

func TestDecodeRefusesClaims(t *testing.T) {
	delivered := func(rest string) string { return message(strings.TrimSuffix(plainMessage, `}`) + rest + `}`) }
	dropped := func(s string) string { return data("input/dropped", s) }
	cancelled := func(s string) string { return data("turn/cancelled", s) }
	id := `"inputId":"` + string(sampleID) + `"`
	parent := `"parent":{"id":"` + string(sampleID) + `","seq":7,"chain":"` + zeroHash + `"`
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"configured without id":       {data("session/configured", `{"inboxSeq":1}`), events.ErrInvalid},
		"configured without sequence": {data("session/configured", `{`+id+`}`), events.ErrInvalid},
		"closed without id":           {data("session/closed", `{"reason":"","inboxSeq":1}`), events.ErrInvalid},
		"compaction without id":       {data("compaction/start", `{"compactionId":"k","inboxSeq":1}`), events.ErrInvalid},
		"compaction reason empty":     {data("compaction/start", `{"compactionId":"k","reason":""}`), events.ErrInvalid},
		"compaction reason unknown":   {data("compaction/start", `{"compactionId":"k","reason":"boredom"}`), events.ErrInvalid},
		"compaction reason late":      {data("compaction/start", `{"compactionId":"k"`+claimed+`,"reason":"command"}`), events.ErrSyntax},
		"id empty":                    {data("session/closed", `{"reason":"","inboxSeq":1,"inputId":""}`), events.ErrInvalid},
		"id malformed":                {data("session/closed", `{"reason":"","inboxSeq":1,"inputId":"x"}`), events.ErrInvalid},
		"id before sequence":          {data("session/closed", `{"reason":"",`+id+`,"inboxSeq":1}`), events.ErrInvalid},
		"cancelled, sequence zero":    {cancelled(`{"cause":"","inboxSeq":0,` + id + `}`), events.ErrSyntax},
		"cancelled without cause":     {cancelled(`{"turn":1}`), events.ErrSyntax},
		"cancelled in turn 0":         {cancelled(`{"turn":0,"cause":""}`), events.ErrSyntax},
		"cancelled, keepQueue false":  {cancelled(`{"cause":"","keepQueue":false}`), events.ErrSyntax},
		"cancelled without id":        {cancelled(`{"cause":"","inboxSeq":1}`), events.ErrInvalid},
		"dropped, no claim":           {dropped(`{"kind":"prompt","cause":""}`), events.ErrSyntax},
		"dropped, no id":              {dropped(`{"inboxSeq":1,"kind":"prompt","cause":""}`), events.ErrSyntax},
		"dropped, no sequence":        {dropped(`{` + id + `,"kind":"prompt","cause":""}`), events.ErrSyntax},
		"dropped, sequence zero":      {dropped(`{"inboxSeq":0,` + id + `,"kind":"prompt","cause":""}`), events.ErrInvalid},
		"dropped, id malformed":       {dropped(`{"inboxSeq":1,"inputId":"","kind":"prompt","cause":""}`), events.ErrInvalid},
		"dropped, kind unknown":       {dropped(`{` + claimed[1:] + `,"kind":"x","cause":""}`), events.ErrInvalid},
		"dropped, cause missing":      {dropped(`{` + claimed[1:] + `,"kind":"prompt"}`), events.ErrSyntax},
		"delivery of no input":        {delivered(`,"delivery":"steer"`), events.ErrInvalid},
		"delivery of a prompt":        {delivered(`,"inboxSeq":1,"delivery":"prompt"`), events.ErrInvalid},
		"delivery empty":              {delivered(`,"inboxSeq":1,"delivery":""`), events.ErrInvalid},
		"delivery first":              {delivered(`,"delivery":"steer","inboxSeq":1`), events.ErrInvalid},
		"message with input id":       {delivered(claimed), events.ErrSyntax},
		"parent without first":        {data("session/created", `{"format":1,`+parent+`}}`), events.ErrSyntax},
		"parent, first too short":     {data("session/created", `{"format":1,`+parent+`,"first":"00"}}`), events.ErrSyntax},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}

func TestDecodeRefusesImages(t *testing.T) {
	block := func(s string) string {
		return message(`{"message":{"id":"m","role":"user","content":[` + s + `],"source":{"kind":"user"}}}`)
	}
	with := func(old, now string) string {
		s := strings.Replace(pixel, old, now, 1)
		if s == pixel {
			t.Fatalf("%q does not occur", old)
		}
		return block(s)
	}
	images := func(s string) string { return data("request/images", `{"images":[`+s+`]}`) }
	image := func(s string) string { return images(`{"image":"` + zeroHash + `","as":` + s + `}`) }
	once := `{"image":"` + zeroHash + `","as":"text","label":"none"}`
	answer := `"data":{"turn":1,"step":1,"message":{"id":"m","role":"assistant","content":[` + pixel +
		`],"source":{"kind":"model"}},"finish":{"kind":"stop"}},"surfaceOp":"append"`
	result := `"data":{"turn":1,"step":1,"message":{"id":"m","role":"user","content":[{"type":"tool-result","toolCallId":"c","content":[],` +
		`"isError":false}],"source":{"kind":"tool"}},"contexts":@},"surfaceOp":"append"`
	contexts := func(s string) string { return payload("tool/result", strings.Replace(result, "@", s, 1)) }
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"block with text":       {block(`{"type":"image","text":""}`), events.ErrSyntax},
		"no object":             {block(`{"type":"image","width":1,"height":1}`), events.ErrSyntax},
		"width 0":               {with(`"width":1`, `"width":0`), events.ErrInvalid},
		"height 0":              {with(`"height":1`, `"height":0`), events.ErrInvalid},
		"height missing":        {with(`,"height":1`, ``), events.ErrSyntax},
		"height first":          {with(`"width":1,"height":1`, `"height":1,"width":1`), events.ErrSyntax},
		"name empty":            {with(`"height":1`, `"height":1,"name":""`), events.ErrSyntax},
		"name first":            {with(`"object"`, `"name":"n","object"`), events.ErrSyntax},
		"media type of text":    {with(`image/png`, `text/wtf-8`), events.ErrInvalid},
		"media type not taken":  {with(`image/png`, `image/svg+xml`), events.ErrInvalid},
		"media type upper case": {with(`image/png`, `image/PNG`), events.ErrInvalid},
		"image of a model":      {payload("assistant/message", answer), events.ErrInvalid},
		"image in a summary":    {data("compaction/summary", `{"compactionId":"k","region":{"start":1,"end":1},"shadowed":[],"shadowedTokens":0,"summary":[`+pixel+`],"provider":"","model":""}`), events.ErrInvalid},
		"image in a directive":  {data("llm/stream", `{"turn":1,"step":0,`+auxiliary(`"directive":[`+pixel+`]`)), events.ErrInvalid},

		"no images":               {images(``), events.ErrInvalid},
		"image twice":             {images(once + `,` + once), events.ErrInvalid},
		"form unknown":            {image(`"link"`), events.ErrInvalid},
		"inline without object":   {image(`"inline"`), events.ErrInvalid},
		"inline with file":        {image(`"inline","object":` + pixelRef + `,"fileId":"f"`), events.ErrInvalid},
		"inline of text":          {image(`"inline","object":` + strings.Replace(pixelRef, "image/png", "text/wtf-8", 1)), events.ErrInvalid},
		"file without id":         {image(`"file"`), events.ErrInvalid},
		"file with empty id":      {image(`"file","fileId":""`), events.ErrSyntax},
		"file with object":        {image(`"file","object":` + pixelRef + `,"fileId":"f"`), events.ErrInvalid},
		"placeholder of nothing":  {image(`"text"`), events.ErrInvalid},
		"placeholder with empty":  {image(`"text","label":""`), events.ErrSyntax},
		"placeholder with file":   {image(`"text","label":"none","fileId":"f"`), events.ErrInvalid},
		"placeholder with object": {image(`"text","label":"none","object":` + pixelRef), events.ErrInvalid},
		"width alone":             {image(`"file","fileId":"f","width":1`), events.ErrInvalid},
		"height alone":            {image(`"file","fileId":"f","height":1`), events.ErrInvalid},
		"shown width 0":           {image(`"file","fileId":"f","width":0,"height":1`), events.ErrSyntax},

		"contexts empty":           {contexts(`[]`), events.ErrSyntax},
		"context of nobody":        {contexts(`[{"plugin":"","text":"x"}]`), events.ErrInvalid},
		"context without text":     {contexts(`[{"plugin":"p"}]`), events.ErrSyntax},
		"context with other field": {contexts(`[{"plugin":"p","text":"","id":"x"}]`), events.ErrSyntax},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}

func TestDecodeRefusesAuxiliary(t *testing.T) {
	stream := func(s string) string { return data("llm/stream", `{`+s) }
	good := `"turn":0,"step":0,` + auxiliary(`"directive":[]`)
	part := `"auxiliary":{"config":{"provider":"p","model":"m"},"directive":[]},`
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"title without":        {stream(strings.Replace(good, part, ``, 1)), events.ErrInvalid},
		"compaction without":   {stream(strings.Replace(strings.Replace(good, part, ``, 1), "title", "compaction", 1)), events.ErrInvalid},
		"loop with":            {stream(strings.NewReplacer("title", "loop", `"turn":0,"step":0`, `"turn":1,"step":1`).Replace(good)), events.ErrInvalid},
		"loop outside of turn": {stream(`"turn":0,"step":0,"attempt":1,"purpose":"loop",` + streamRest), events.ErrInvalid},
		"loop between steps":   {stream(`"turn":1,"step":0,"attempt":1,"purpose":"loop",` + streamRest), events.ErrInvalid},
		"step without turn":    {stream(strings.Replace(good, `"step":0`, `"step":1`, 1)), events.ErrInvalid},
		"attempt 0":            {stream(strings.Replace(good, `"attempt":1`, `"attempt":0`, 1)), events.ErrInvalid},
		"region zero":          {stream(`"turn":0,"step":0,` + auxiliary(`"region":{"start":0,"end":0},"directive":[]`)), events.ErrSyntax},
		"directive missing":    {stream(`"turn":0,"step":0,` + auxiliary(`"region":{"start":1,"end":1}`)), events.ErrSyntax},
		"directive reasons":    {stream(`"turn":0,"step":0,` + auxiliary(`"directive":[{"type":"reasoning","text":""}]`)), events.ErrInvalid},
		"config without model": {stream(strings.Replace(good, `"model":"m"`, `"model":""`, 1)), events.ErrInvalid},
		"failed, no turn":      {data("llm/failed", `{"turn":0,"step":1,"attempt":1,"failure":{"message":"","code":"CANCELLED"}}`), events.ErrInvalid},
		"retry, no turn":       {data("llm/retry", `{"turn":0,"step":1,"retryId":"","retry":1,"delayMs":0,"failure":{"message":"","code":"SERVER"}}`), events.ErrInvalid},
		"started, no turn":     {data("llm/retry-started", `{"turn":0,"step":1,"retryId":"","retry":1}`), events.ErrInvalid},
		"chunk, no turn":       {data("assistant/chunk", `{"turn":0,"step":1,"attempt":1,"chunks":[{"type":"block-end","index":0}]}`), events.ErrInvalid},
		"answer, no turn":      {payload("assistant/message", `"data":{"turn":0,"step":0,"message":{"id":"m","role":"assistant","content":[],"source":{"kind":"model"}},"finish":{"kind":"stop"}},"surfaceOp":"append"`), events.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}

func TestDecodeRefusesChanges(t *testing.T) {
	header := func(rest string) string {
		return data("request/header", `{"header":{"config":{"provider":"p","model":"m"}},"reason":"initial"`+rest+`}`)
	}
	changed := func(s string) string { return header(`,"changedBy":[` + s + `]`) }
	const one, other = `{"extension":"x","fields":["model"]}`, `{"extension":"y","fields":["provider","model","reasoningEffort","maxTokens","temperature","stop"]}`
	for _, p := range []string{header(``), changed(one), changed(one + `,` + other)} {
		if !canonicalOrRefused(t, []byte(p)) {
			t.Errorf("refused: %s", p)
		}
	}
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"none":                {changed(``), events.ErrSyntax},
		"null":                {header(`,"changedBy":null`), events.ErrSyntax},
		"before the reason":   {data("request/header", `{"header":{"config":{"provider":"p","model":"m"}},"changedBy":[`+one+`],"reason":"initial"}`), events.ErrSyntax},
		"no name":             {changed(`{"extension":"","fields":["model"]}`), events.ErrInvalid},
		"no extension":        {changed(`{"fields":["model"]}`), events.ErrSyntax},
		"no fields":           {changed(`{"extension":"x","fields":[]}`), events.ErrInvalid},
		"fields missing":      {changed(`{"extension":"x"}`), events.ErrSyntax},
		"another field":       {changed(`{"extension":"x","fields":["model"],"why":""}`), events.ErrSyntax},
		"an unknown field":    {changed(`{"extension":"x","fields":["system"]}`), events.ErrInvalid},
		"a field of no name":  {changed(`{"extension":"x","fields":[""]}`), events.ErrInvalid},
		"a field twice":       {changed(`{"extension":"x","fields":["model","model"]}`), events.ErrInvalid},
		"fields out of order": {changed(`{"extension":"x","fields":["model","provider"]}`), events.ErrInvalid},
		"an extension twice":  {changed(one + `,` + one), events.ErrInvalid},
		"twice, then syntax":  {header(`,"changedBy":[` + one + `,` + one + `],"y":1`), events.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}

// TestDecodeNamesTheFirstFault has payloads with a fault that comes earlier and one that comes later. What is judged when
// an object has been read gives way to what its fields say.
func TestDecodeNamesTheFirstFault(t *testing.T) {
	block := func(s string) string {
		return message(`{"message":{"id":"m","role":"user","content":[` + s + `],"source":{"kind":"user"}}}`)
	}
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"a word, then syntax":                     {data("compaction/end", `{"compactionId":"k","outcome":"x","y":1}`), events.ErrInvalid},
		"syntax, then a word":                     {data("compaction/end", `{"compactionId":"k", "outcome":"x"}`), events.ErrSyntax},
		"an empty compactionId, then syntax":      {data("compaction/end", `{"compactionId":"","y":1}`), events.ErrInvalid},
		"a long seed, then syntax":                {data("session/created", `{"format":1,"seedLength":9223372036854775808,"y":1}`), events.ErrInvalid},
		"half a claim, then syntax":               {data("turn/cancelled", `{"cause":"","inboxSeq":1,"y":1}`), events.ErrInvalid},
		"a place's pair, then syntax":             {data("llm/retry", `{"turn":0,"step":1,"y":1}`), events.ErrInvalid},
		"no auxiliary, then syntax":               {data("llm/stream", `{"turn":1,"step":1,"attempt":1,"purpose":"title","y":1}`), events.ErrInvalid},
		"an empty model, then syntax in config":   {data("request/header", `{"header":{"config":{"provider":"p","model":"","y":1}},"reason":"initial"}`), events.ErrSyntax},
		"an empty model, then syntax in header":   {data("request/header", `{"header":{"config":{"provider":"p","model":""},"y":1},"reason":"initial"}`), events.ErrInvalid},
		"an empty call id, then syntax in block":  {block(`{"type":"tool-call","id":"","name":"n","arguments":"","y":1}`), events.ErrInvalid},
		"a width of 0, then syntax in block":      {block(strings.Replace(pixel, `"width":1,"height":1`, `"width":0,"height":1,"y":1`, 1)), events.ErrInvalid},
		"an empty callId, then syntax in data":    {data("tool/call", `{"turn":1,"step":1,"callId":"","name":"n","arguments":"","y":1}`), events.ErrInvalid},
		"a misplaced block, then syntax in it":    {block(`{"type":"reasoning","text":1}`), events.ErrSyntax},
		"a width alone, then syntax in the image": {data("request/images", `{"images":[{"image":"`+zeroHash+`","as":"file","fileId":"f","width":1,"y":1}]}`), events.ErrSyntax},
		"sequence 0, then syntax":                 {strings.Replace(payload("turn/start", `"data":{"turn":1},"y":1`), `"seq":9`, `"seq":0`, 1), events.ErrSyntax},
		"sequence 0, then an unknown type":        {strings.Replace(data("vendor/new", `{}`), `"seq":9`, `"seq":0`, 1), events.ErrInvalid},
		"an unknown type, then a source":          {payload("vendor/new", `"data":{},"sourceEventSeqs":[9]`), events.ErrUnknownType},
		"a source, then trailing bytes":           {payload("turn/start", `"data":{"turn":1},"sourceEventSeqs":[9]`) + "x", events.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.payload, c.want) })
	}
}
