package scenarios_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
)

// patience bounds every wait for a process.
const patience = 30 * time.Second

type processesKey struct{}

// process is a program that runs beside a script.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when all of its output was read and it was waited for
	err  error         // how it ended; read after done

	mu    sync.Mutex
	lines []string
	match []string // of the pattern
	ready chan struct{}
}

// read takes the program's output until it ends.
func (p *process) read(out *bufio.Scanner, pattern *regexp.Regexp) {
	defer close(p.done)
	for out.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, out.Text())
		if p.match == nil {
			if p.match = pattern.FindStringSubmatch(strings.Join(p.lines, "\n")); p.match != nil {
				close(p.ready)
			}
		}
		p.mu.Unlock()
	}
	p.err = p.cmd.Wait()
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// cmdStart starts a program and waits until its output matches a pattern, whose groups become NAME_1, NAME_2 and so on.
//
//	start NAME PATTERN PROGRAM [ARGUMENT...]
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME PATTERN PROGRAM [ARGUMENT...]")
	}
	name, pattern := args[0], regexp.MustCompile("(?m)"+args[1])
	path, err := exec.LookPath(filepath.Join(programs, args[2]))
	ts.Check(err)
	p := &process{cmd: exec.CommandContext(context.Background(), path, args[3:]...), done: make(chan struct{}), ready: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = environment(ts)
	out, err := p.cmd.StdoutPipe()
	ts.Check(err)
	p.cmd.Stderr = p.cmd.Stdout
	ts.Check(p.cmd.Start())
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 16<<20)
	go p.read(scanner, pattern)
	ts.Defer(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	})
	ts.Value(processesKey{}).(map[string]*process)[name] = p
	select {
	case <-p.ready:
	case <-p.done:
		ts.Fatalf("%s ended: %v\n%s", name, p.err, p.text())
	case <-time.After(patience):
		ts.Fatalf("%s does not say %q:\n%s", name, args[1], p.text())
	}
	for i, m := range p.match[1:] {
		ts.Setenv(name+"_"+strconv.Itoa(i+1), m)
	}
}

// environment returns what the programs look at.
func environment(ts *testscript.TestScript) []string {
	var env []string
	for _, v := range []string{"PATH", "HOME", "TMPDIR", "REFOLD_DIR", "REFOLD_NATS", "DEEPSEEK_API_KEY"} {
		env = append(env, v+"="+ts.Getenv(v))
	}
	return env
}

// cmdHalt ends a program started before and wants exit code 0; with -kill it does it the hard way.
//
//	halt [-kill] NAME
func cmdHalt(ts *testscript.TestScript, neg bool, args []string) {
	hard := len(args) == 2 && args[0] == "-kill"
	if neg || len(args) == 0 || len(args) == 2 && !hard || len(args) > 2 {
		ts.Fatalf("usage: halt [-kill] NAME")
	}
	p := ts.Value(processesKey{}).(map[string]*process)[args[len(args)-1]]
	if p == nil {
		ts.Fatalf("no process %s", args[len(args)-1])
	}
	signal := os.Signal(syscall.SIGTERM)
	if hard {
		signal = os.Kill
	}
	ts.Check(p.cmd.Process.Signal(signal))
	select {
	case <-p.done:
	case <-time.After(patience):
		ts.Fatalf("it does not stop:\n%s", p.text())
	}
	if p.err != nil && !hard {
		ts.Fatalf("it ended with %v:\n%s", p.err, p.text())
	}
}

// cmdSay wants, or with ! does not want, a program's output so far to match.
//
//	[!] say NAME PATTERN
func cmdSay(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] say NAME PATTERN")
	}
	p := ts.Value(processesKey{}).(map[string]*process)[args[0]]
	if p == nil {
		ts.Fatalf("no process %s", args[0])
	}
	if regexp.MustCompile(args[1]).MatchString(p.text()) == neg {
		ts.Fatalf("%s says:\n%s", args[0], p.text())
	}
}

// cmdHeed waits until a program's output matches.
//
//	heed NAME PATTERN
func cmdHeed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: heed NAME PATTERN")
	}
	p := ts.Value(processesKey{}).(map[string]*process)[args[0]]
	if p == nil {
		ts.Fatalf("no process %s", args[0])
	}
	pattern := regexp.MustCompile(args[1])
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for end := time.After(patience); !pattern.MatchString(p.text()); {
		select {
		case <-again.C:
		case <-end:
			ts.Fatalf("%s does not say %q:\n%s", args[0], args[1], p.text())
		}
	}
}

// cmdNoise writes text that hardly compresses, the same every time.
//
//	noise FILE BYTES
func cmdNoise(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: noise FILE BYTES")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	raw := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(raw) // it never fails
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(base64.StdEncoding.EncodeToString(raw))[:n], 0o600))
}

// cmdNATS starts a NATS server in this process and puts its URL into a variable.
//
//	nats plain|no-jetstream|no-streams|full|small-objects VARIABLE
func cmdNATS(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: nats KIND VARIABLE")
	}
	o := embedded.Options{StoreDir: filepath.Join(ts.MkAbs("."), "nats-"+args[1]), Port: -1}
	user := func(allow ...string) func(*server.Options) {
		return func(so *server.Options) {
			so.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: allow}, Subscribe: &server.SubjectPermission{Allow: []string{">"}},
			}}}
		}
	}
	switch args[0] {
	case "plain", "small-objects":
	case "no-streams": // everything but making and changing streams
		o.Configure = user("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.>", "inbox.>", "session.>")
	case "full":
		o.MaxStore = 8 << 10
	case "no-jetstream":
		ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
		ts.Check(err)
		ns.Start()
		ts.Defer(func() { ns.Shutdown(); ns.WaitForShutdown() })
		if !ns.ReadyForConnections(patience) {
			ts.Fatalf("the server is not ready")
		}
		ts.Setenv(args[1], ns.ClientURL())
		return
	default:
		ts.Fatalf("unknown kind %q", args[0])
	}
	s, err := embedded.Start(o)
	ts.Check(err)
	ts.Defer(s.Shutdown)
	url := s.ClientURL()
	if args[0] == "small-objects" {
		smallObjects(ts, url)
	}
	if o.Configure != nil {
		url = strings.Replace(url, "://", "://u:p@", 1)
	}
	ts.Setenv(args[1], url)
}

// smallObjects makes the objects' stream with room for next to nothing.
func smallObjects(ts *testscript.TestScript, url string) {
	conn, err := nats.Connect(url)
	ts.Check(err)
	defer conn.Close()
	js, err := natsjs.New(conn)
	ts.Check(err)
	cfg := jetstream.ObjectsConfig(1)
	cfg.MaxBytes, cfg.Discard = 4<<10, natsjs.DiscardNew
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = js.CreateStream(ctx, cfg)
	ts.Check(err)
}

// cmdWeb starts a web server that is no NATS server and no model provider, and puts its HOST:PORT into a variable.
func cmdWeb(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: web VARIABLE")
	}
	s := httptest.NewServer(http.NotFoundHandler())
	ts.Defer(s.Close)
	ts.Setenv(args[0], s.Listener.Addr().String())
}

// cmdCapture puts the first group of a pattern in a file, or in the output of the last command, into a variable.
//
//	capture VARIABLE FILE PATTERN
func cmdCapture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: capture VARIABLE FILE PATTERN")
	}
	m := regexp.MustCompile("(?m)" + args[2]).FindStringSubmatch(ts.ReadFile(args[1]))
	if len(m) < 2 {
		ts.Fatalf("no match for %q in:\n%s", args[2], ts.ReadFile(args[1]))
	}
	ts.Setenv(args[0], m[1])
}

// cmdOneLine wants the error output of the last command to be one line, of printable characters, that matches all
// patterns.
//
//	oneline [PATTERN...]
func cmdOneLine(ts *testscript.TestScript, neg bool, args []string) {
	text := ts.ReadFile("stderr")
	line, rest, ended := strings.Cut(text, "\n")
	control := strings.ContainsFunc(line, func(r rune) bool { return r < 0x20 || r >= 0x7F && r < 0xA0 || r == utf8.RuneError })
	if neg || !ended || rest != "" || len(line) < 20 || len(line) > 1000 || control {
		ts.Fatalf("not one clean line of 20 to 1000 bytes: %q", text)
	}
	for _, a := range args {
		if !regexp.MustCompile(a).MatchString(line) {
			ts.Fatalf("no match for %q in %q", a, line)
		}
	}
}

// cmdDigest puts the SHA-256 of a file into a variable.
func cmdDigest(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: digest VARIABLE FILE")
	}
	sum := sha256.Sum256([]byte(ts.ReadFile(args[1])))
	ts.Setenv(args[0], hex.EncodeToString(sum[:]))
}

// cmdExample writes the first JSON example of a page of the documentation to a file.
//
//	example FILE PAGE
func cmdExample(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: example FILE PAGE")
	}
	_, rest, found := strings.Cut(ts.ReadFile(args[1]), "\n```json\n")
	text, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		ts.Fatalf("no JSON example in %s", args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// cmdPut writes bytes, in Go's notation, to a file.
func cmdPut(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: put FILE TEXT [TIMES]")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	times := 1
	if len(args) == 3 {
		times, err = strconv.Atoi(args[2])
		ts.Check(err)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Repeat(text, times)), 0o600))
}

// cmdBytes wants, or with ! does not want, a file to hold bytes, in Go's notation.
//
//	[!] bytes FILE TEXT
func cmdBytes(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] bytes FILE TEXT")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	if bytes.Contains([]byte(ts.ReadFile(args[0])), []byte(text)) == neg {
		ts.Fatalf("%s holds %q: %t", args[0], text, neg)
	}
}

// cmdRetry runs a program again until its output matches a pattern.
//
//	retry PATTERN PROGRAM [ARGUMENT...]
func cmdRetry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: retry PATTERN PROGRAM [ARGUMENT...]")
	}
	pattern := regexp.MustCompile(args[0])
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		cmd := exec.CommandContext(ctx, filepath.Join(programs, args[1]), args[2:]...)
		cmd.Dir, cmd.Env = ts.MkAbs("."), environment(ts)
		out, err := cmd.CombinedOutput()
		if err == nil && pattern.Match(out) {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			ts.Fatalf("no match for %q (%v) in:\n%s", args[0], err, out)
		}
	}
}

// cmdDisk mounts a disk of so many bytes at a directory.
//
//	disk DIRECTORY BYTES
func cmdDisk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: disk DIRECTORY BYTES")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	ts.Check(syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+args[1]))
	ts.Defer(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }) // the directory goes with it
}

// cmdFill writes to a file until its disk is full.
func cmdFill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: fill FILE")
	}
	f, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close() //nolint:errcheck // it is meant to fail
	for err == nil {
		_, err = f.Write(make([]byte, 4<<10))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		ts.Fatalf("fill: %v", err)
	}
}
