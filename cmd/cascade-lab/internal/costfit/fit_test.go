package costfit

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func near(got, want, tolerance float64) bool {
	return math.Abs(got-want) <= tolerance*math.Abs(want)
}

// The generation table is synthetic: t = a + b·B + c·B·KV per layer, exactly.
func TestFitRecoversGeneration(t *testing.T) {
	const a, b, c = 11e-6, 0.13e-6, 0.98e-9
	var table strings.Builder
	table.WriteString("framework,batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,window_size,latency\n")
	for _, batch := range []int{1, 8, 64, 512, 1024} {
		for _, kv := range []int{32, 64, 1024, 131072} {
			ms := (a + b*float64(batch) + c*float64(batch*kv)) * 1e3
			if batch == 1024 || kv == 32 {
				ms *= 7 // outside the fit's bounds: ignored
			}
			fmt.Fprintf(&table, "VLLM,%d,1,32,8,128,bfloat16,bfloat16,%d,0,%v\n", batch, kv-1, ms)
			fmt.Fprintf(&table, "VLLM,%d,1,32,8,128,bfloat16,fp8,%d,0,%v\n", batch, kv-1, ms*2)
			fmt.Fprintf(&table, "VLLM,%d,1,64,8,128,bfloat16,bfloat16,%d,0,%v\n", batch, kv-1, ms*3)
			fmt.Fprintf(&table, "VLLM,%d,1,32,8,128,bfloat16,bfloat16,%d,4096,%v\n", batch, kv-1, ms*4)
		}
	}
	p, err := Fit(FitConfig{Name: "x", Model: Llama8B(), Device: Device{Memory: 141e9, Flops: 1e15, Overhead: 1e-3}, Generation: strings.NewReader(table.String())})
	if err != nil {
		t.Fatal(err)
	}
	weights := 16.06e9 / (4096 / c)
	for _, x := range []struct {
		name      string
		got, want float64
	}{{"D0", p.D0, a*32 + weights + 1e-3}, {"D1", p.D1, b * 32}, {"D4", p.D4, c * 32}, {"WeightSeconds", p.WeightSeconds, weights}} {
		if !near(x.got, x.want, 1e-4) {
			t.Errorf("%s = %v, want %v", x.name, x.got, x.want)
		}
	}
	if p.FitError.P90 > 1e-6 || p.FitError.Points != 12 {
		t.Errorf("fit error of exact data: %+v", p.FitError)
	}
}

func TestFitRecoversLayers(t *testing.T) {
	const kappa = 1.5
	var attention, dense, perSequence, skew strings.Builder
	attention.WriteString("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n")
	decode := func(n, kv int) float64 { return 8 + 0.5*float64(n) + 0.003*float64(n*kv) }
	for _, n := range []int{1, 4, 16, 64} {
		for _, kv := range []int{64, 1024, 16384} {
			fmt.Fprintf(&attention, "0,0,%d,%d,%v\n", n, kv, decode(n, kv))
			fmt.Fprintf(&attention, "16,0,%d,%d,%v\n", n, kv, 9*decode(n, kv)) // mixed: not fitted
		}
	}
	for _, chunk := range []float64{256, 1024, 2048} {
		for _, cached := range []float64{0, 1024} {
			end := cached + chunk
			fmt.Fprintf(&attention, "%v,%v,0,0,%v\n", chunk, cached, 5+0.02*chunk+4e-6*(end*end-cached*cached))
		}
	}
	dense.WriteString("layer,tokens,time_us\n")
	for _, tokens := range []float64{1, 64, 128, 512, 2048} {
		perToken := 0.5
		if tokens > 256 { // beyond the largest batch: of prompts alone
			perToken = 0.8
		}
		fmt.Fprintf(&dense, "layernorm,%v,%v\n", tokens, 2+0.01*tokens)
		fmt.Fprintf(&dense, "mlp,%v,%v\n", tokens, 200+perToken*tokens)
		fmt.Fprintf(&dense, "embedding,%v,%v\n", tokens, 3+0.001*tokens)
	}
	perSequence.WriteString("layer,sequences,time_us\nlm_head,1,701\nlm_head,64,764\nlm_head,256,956\nlm_head,512,9999\n") // the last one is beyond the batch: ignored
	skew.WriteString("regime,n,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n")
	for _, big := range []int{1024, 4096} {
		mean := big / 2
		fmt.Fprintf(&skew, "pure,4,%d,%d,%v,0,%v\n", big, mean, decode(4, mean), decode(4, mean)+0.003*kappa*float64(big-mean))
		fmt.Fprintf(&skew, "mixed,4,%d,%d,100,0,9999\n", big, mean)
	}
	p, err := Fit(FitConfig{
		Name: "x", Model: Llama8B(), Device: Device{Memory: 96e9},
		Attention: strings.NewReader(attention.String()), Dense: strings.NewReader(dense.String()),
		PerSequence: strings.NewReader(perSequence.String()), Skew: strings.NewReader(skew.String()),
	})
	if err != nil {
		t.Fatal(err)
	}
	const us, layers = 1e-6, 32
	for _, x := range []struct {
		name      string
		got, want float64
	}{
		{"D0", p.D0, (layers*(2*2+200) + 3 + 700 + layers*8) * us},
		{"D1", p.D1, (layers*(2*0.01+0.5) + 0.001 + 1 + layers*0.5) * us},
		{"D2", p.D2, (layers*(2*0.01+0.8) + 0.001 + layers*0.02) * us},
		{"D3", p.D3, layers * 4e-6 * us},
		{"D4", p.D4, layers * 0.003 * us},
		{"Kappa", p.Kappa, kappa},
	} {
		if !near(x.got, x.want, 1e-3) {
			t.Errorf("%s = %v, want %v", x.name, x.got, x.want)
		}
	}
}

// TestRowsByBatch checks which rows decodes are fitted to, up to the largest batch, and
// which prompts, from the smallest chunk.
func TestRowsByBatch(t *testing.T) {
	c := FitConfig{Dense: strings.NewReader("layer,tokens,time_us\nmlp,1,1\nmlp,255,2\nmlp,256,3\nmlp,300,4\nmlp,301,5\n")}
	small, large, err := c.readDense(300)
	if err != nil || len(small) != 4 || small[3].x[1] != 300 || len(large) != 3 || large[0].x[1] != minPrefillChunk {
		t.Errorf("decodes %v, prompts %v, %v", small, large, err)
	}
	c = FitConfig{PerSequence: strings.NewReader("layer,sequences,time_us\nlm_head,299,1\nlm_head,300,2\nlm_head,301,3\n")}
	if rows, err := c.readPerSequence(300); err != nil || len(rows) != 2 || rows[1].x[1] != 300 {
		t.Errorf("sequences %v, %v", rows, err)
	}
}

func TestFitRefuses(t *testing.T) {
	ok := FitConfig{Name: "x", Model: Llama8B(), Device: Device{Memory: 80e9, Flops: 1e15}}
	header := "batch_size,isl,step,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,latency\n"
	for _, x := range []struct{ table, want string }{
		{"", "header"},
		{"a,b\n", `no column "batch_size"`},
		{header, "0 rows of shape 32/8"},
		{header + "1,1,63,32,8,128,bfloat16,bfloat16,soon\n", `line 2, column "latency"`},
		{header + "1,1,63,32,8,128,bfloat16,bfloat16,NaN\n", `line 2, column "latency"`},
		{header + "1,1,63,64,eight,128,bfloat16,bfloat16,1\n", `line 2, column "num_key_value_heads"`}, // of another shape
		{header + "1,1\n", "wrong number of fields"},
	} {
		c := ok
		c.Generation = strings.NewReader(x.table)
		if _, err := Fit(c); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("table %q: error %v, want one with %q", x.table, err, x.want)
		}
	}
	c := FitConfig{PerSequence: strings.NewReader("layer,sequences,time_us\nlm_head,512,soon\n")}
	if _, err := c.readPerSequence(256); err == nil || !strings.Contains(err.Error(), `line 2, column "time_us"`) {
		t.Errorf("a row that is not fitted: error %v", err)
	}
	if _, err := Fit(ok); err == nil || !strings.Contains(err.Error(), "tables") {
		t.Errorf("no tables: error %v", err)
	}
}

func TestLeastSquaresIsNonNegative(t *testing.T) {
	// t falls with x[1]: unconstrained, its coefficient would be negative.
	rows := []row{{[]float64{1, 0}, 3}, {[]float64{1, 1}, 2}, {[]float64{1, 2}, 1}}
	c, err := leastSquares(rows)
	if err != nil {
		t.Fatal(err)
	}
	if c[1] != 0 || !(c[0] > 1 && c[0] < 3) {
		t.Errorf("coefficients %v, want a positive constant and 0", c)
	}
}
