// The experiments: question, formula, columns and plots of each.

#include <thimble/bench/experiments/experiments.h>

namespace thimble::bench {
namespace {

using Columns = std::vector<report::Column>;

Columns step_columns() {
  return {{"parameters", "parameters", Unit::plain, 0},
          {"load", "load (lower bound)", Unit::bytes},
          {"resident", "resident (kernel)", Unit::bytes},
          {"ms_per_step", "ms per step", Unit::milliseconds, 1}};
}
Columns pass_columns() {
  return {{"peak", "peak of the pass", Unit::bytes},
          {"peak_measured", "the same, measured", Unit::bytes},
          {"runs", "forwards per layer", Unit::plain, 2}};
}
Columns rank_columns() { return {{"sent", "sent per step", Unit::bytes}, {"loss_last", "last loss", Unit::plain, 6}}; }

Columns batch_columns(const char* name, const char* title) {
  return {{"live", "live bytes at the step's peak", Unit::bytes},
          {"peak", "peak of the step", Unit::bytes},
          {"peak_measured", "the same, measured", Unit::bytes},
          {"ms_per_step", "ms per step", Unit::milliseconds, 1},
          {name, title, Unit::percent, 1}};
}

std::vector<PlotOfRows::Curve> three_curves() {
  return {{"theory", ", theory", Role::theory},
          {"predicted", ", predicted", Role::predicted},
          {"measured", ", measured", Role::measured}};
}

PlotOfRows pass_plot(const char* x, const char* title) {
  return {{x,
           title,
           "The most activations and temporaries during one forward and backward. Lines: predicted; marks: measured.",
           {x, Unit::plain, Scale::log2},
           {"peak of the pass", Unit::bytes, Scale::log2},
           {}},
          x,
          {{"peak", "", Role::predicted}, {"peak_measured", ", measured", Role::measured}},
          [](const report::Row& row) { return setting(row, "checkpointed") + ", " + setting(row, "build"); }};
}

report::Plot live_plot(const char* title, const char* x) {
  return {"peak",
          title,
          "Live bytes at the peak of a training step, predicted; lines.",
          {x, Unit::plain, Scale::log2},
          {"live bytes at the peak", Unit::bytes, Scale::log2},
          {}};
}

}  // namespace

const std::vector<ExperimentTable>& all_experiments() {
  static const std::vector<ExperimentTable> list{
      {"training",
       "A GPT and a ResNet train",
       "Do models learn inside the memory that the dry run predicted?",
       "predicted: a dry run of the same program (two steps, an evaluation); measured: bytes that the arena committed "
       "in training. The data is generated, so nothing is downloaded.",
       {{"loss_first", "first loss", Unit::plain, 3},
        {"loss_last", "last loss", Unit::plain, 3},
        {"validation_loss", "validation loss", Unit::plain, 3},
        {"accuracy", "accuracy", Unit::percent, 1},
        {"ms_per_step", "ms per step", Unit::milliseconds, 1}},
       run_training},
      {"resnet-batch",
       "ResNet activation bytes against the batch",
       "Do the bytes that a ResNet keeps for backward grow linearly with the batch, by the slope of its shapes?",
       "per image: input + conv outputs + ReLU outputs + pool output + fc input; for ResNet-50 at 224 that is "
       "21,075,968 elements, 4 bytes each. The rest is batch-norm statistics, at any batch, and the head's scores.",
       {{"per_image", "bytes per image", Unit::bytes, 1}},
       run_resnet_batch,
       {{{"batch",
          "Kept for backward against the batch (textbook build, f32)",
          "Straight lines: every image costs the same.",
          {"batch"},
          {"kept for backward", Unit::bytes},
          {}},
         "batch",
         three_curves(),
         [](const report::Row& row) { return setting(row, "model") + " at " + setting(row, "image"); }}}},
      {"resnet-branches",
       "ResNet-50, branch by branch",
       "What do a residual block's main path and its shortcut keep for backward?",
       "a bottleneck block of <i>w</i> channels from <i>h</i> x <i>h</i> to <i>k</i> x <i>k</i> keeps on its main "
       "path 2 <i>w h</i><sup>2</sup> + 10 <i>w k</i><sup>2</sup> values, on a shortcut with a convolution 4 <i>w "
       "k</i><sup>2</sup>, and none on a shortcut without one. Batch-norm statistics are listed separately.",
       {},
       run_resnet_branches},
      {"gpt-layer",
       "Activation bytes of one GPT layer",
       "How much does a transformer layer keep for backward, and does it grow as the formula says?",
       "textbook: <i>sbh</i>(16<i>e</i> + 2) + (2<i>e</i> + 1)<i>as</i><sup>2</sup><i>b</i> (Korthikanti et al. "
       "2022, equation 1, with <i>e</i> bytes per element and one-byte dropout masks); tiled attention: "
       "16<i>esbh</i> + 4<i>asb</i>. Here <i>e</i> = 4.",
       {{"per_token", "bytes per token", Unit::plain, 0}},
       run_gpt_layer,
       {{{"sequence",
          "One layer against the sequence length (b 2, h 128, a 4)",
          "The textbook layer grows with the square of the sequence; tiled attention keeps it linear.",
          {"sequence length s", Unit::plain, Scale::log2},
          {"kept for backward", Unit::bytes, Scale::log2},
          {}},
         "s",
         three_curves(),
         [](const report::Row& row) -> std::optional<std::string> {
           if (number(row, "b") != 2 || number(row, "h") != 128 || number(row, "a") != 4) return std::nullopt;
           return setting(row, "build");
         }}}},
      {"gpt-curve",
       "What GPT's layers keep against the time of a step",
       "How many of the bytes that layers keep for backward can a plan save, and how much time does it add?",
       "textbook: <i>L</i>(<i>sbh</i>(16<i>e</i> + 2) + (2<i>e</i> + 1)<i>as</i><sup>2</sup><i>b</i> + "
       "16<i>sb</i>); fused: <i>L</i>(16<i>esbh</i> + 4<i>asb</i> + 16<i>sb</i>), with <i>e</i> = 4. Plans run the "
       "fused build with the chunked head, whose gradients are made in its forward. Their time is by the cost model, "
       "relative to keeping everything with the faster of the two heads. Bytes are those that the layers keep when "
       "backward begins.",
       {{"of_textbook", "of the textbook build", Unit::percent, 1},
        {"of_fused", "of the fused build", Unit::percent, 1},
        {"time_overhead", "time over keeping everything", Unit::percent, 1},
        {"peak", "peak of the step", Unit::bytes},
        {"peak_measured", "the same, measured", Unit::bytes}},
       run_gpt_curve,
       {{{"curve",
          "What the layers keep against the time that plans add",
          "As a share of what the textbook build's layers keep; every point is a plan.",
          {"kept, of the textbook build", Unit::percent},
          {"time over keeping everything", Unit::percent},
          {}},
         "of_textbook",
         {{"time_overhead", ""}},
         [](const report::Row& row) { return setting(row, "model"); }}}},
      {"step-peak", "Where the bytes of a training step are",
       "What uses the bytes at the peak of a step, and how does the optimizer change that?",
       "with <i>P</i> parameters in f32: weights 4<i>P</i>, gradients 4<i>P</i>, state 0 (SGD), 4<i>P</i> "
       "(momentum), 8<i>P</i> (Adam, AdamW); the rest is activations and temporaries.",
       step_columns(), run_step_peak},
      {"prediction", "Peaks, predicted and measured", "Does a dry run predict the peak of a training run to the byte?",
       "predicted: the height of the arena in a dry run of two steps; measured: the bytes that the arena committed "
       "in the real run, and the kernel's count of resident bytes in its mapping.",
       step_columns(), run_prediction},
      {"techniques",
       "Peaks under every technique, predicted and measured",
       "Does the dry run predict the peak to the byte with every technique that saves memory?",
       "predicted: a dry run of two steps; measured: the real run. The arena's committed bytes and height, the live "
       "bytes, the load, the offloaded bytes and the kernel's count of resident bytes are compared as integers. A "
       "budget is a share of the way from the smallest plan to keeping everything. Techniques have their names in "
       "the library; <i>average</i> is a moving average of the weights, which stays in memory, or waits during the "
       "step in a file or, on a GPU, in the host's pinned memory.",
       {{"height", "height, predicted", Unit::bytes},
        {"height_measured", "height, measured", Unit::bytes},
        {"live", "live, predicted", Unit::bytes},
        {"live_measured", "live, measured", Unit::bytes},
        {"resident", "resident (kernel)", Unit::bytes},
        {"same", "all the same", Unit::plain, 0},
        {"ms_per_step", "ms per step", Unit::milliseconds, 1}},
       run_techniques},
      {"known-schedules",
       "Known schedules on 100 equal blocks",
       "Does a tape that follows a published schedule run as many forwards and hold as many bytes as its theory says?",
       "<i>n</i> = 100 blocks relu(<i>x W</i>). Forwards: sqrt(<i>n</i>) at most 2<i>n</i> (Chen et al. 2016, "
       "section 4.1), halves of halves <i>n</i> + A(<i>n</i>), A(<i>n</i>) = <i>h</i> + A(<i>h</i>) + A(<i>n</i> - "
       "<i>h</i>) (section 4.3), binomial with <i>c</i> slots <i>n</i> + <i>rn</i> - C(<i>c</i> + <i>r</i>, "
       "<i>r</i> - 1) (Griewank & Walther 2000). Bytes: the peak that the simulator of schedules gives the chain.",
       {{"forwards_theory", "forwards, theory", Unit::plain, 0},
        {"forwards", "forwards, run", Unit::plain, 0},
        {"kept", "kept when backward begins", Unit::bytes},
        {"units", "peak in activations", Unit::plain, 1},
        {"same_gradients", "gradients the same bits", Unit::plain, 0}},
       run_known_schedules},
      {"checkpoint-depth",
       "Checkpointing against depth",
       "Does checkpointing make a transformer's activations O(sqrt n) in its number of layers n?",
       "kept when backward begins: <i>esbh</i> for each segment that is dropped, 16<i>esbh</i> + 4<i>asb</i> + "
       "16<i>sb</i> for each layer that is not, and the bytes outside the layers. Each layer as a segment: "
       "O(<i>n</i>), only with a smaller constant; segments of sqrt(<i>n</i>) layers: 2 sqrt(<i>n</i>) layers' "
       "worth at the peak (Chen et al. 2016, section 4.1); halves of halves: O(log <i>n</i>) for O(<i>n</i> log "
       "<i>n</i>) forwards (section 4.3).",
       pass_columns(),
       run_checkpoint_depth,
       {pass_plot("layers", "Peak of one pass against depth")}},
      {"checkpoint-sequence",
       "Checkpointing against the sequence",
       "Does checkpointing make a transformer's activations linear in its sequence T?",
       "kept when backward begins: each dropped layer <i>esbh</i>, linear in <i>s</i> = T; each other one "
       "16<i>esbh</i> + <i>eas</i><sup>2</sup><i>b</i> (textbook, no dropout) or 16<i>esbh</i> + 4<i>asb</i> (tiled "
       "attention), and 16<i>sb</i>. Backward makes one layer again at a time, with its <i>s</i><sup>2</sup> where "
       "the build has it: checkpointing divides the square by the depth and does not remove it.",
       pass_columns(),
       run_checkpoint_sequence,
       {pass_plot("sequence", "Peak of one pass against the sequence")}},
      {"checkpoint-batch",
       "Checkpointing against the batch",
       "Is checkpointing worth its time only from a batch of 16 on?",
       "kept when backward begins, for each sample: all layers, or <i>L</i> results of <i>esh</i> bytes, and what "
       "is outside of the layers. Both are linear in the batch <i>b</i>: of a peak of <i>S</i> + <i>bA</i> bytes, "
       "with the model's state <i>S</i>, checkpointing saves <i>b</i>(<i>A</i> - <i>A'</i>), a share that rises "
       "from the first sample on without a threshold, for a second forward of the layers: about a third of the time "
       "at any batch.",
       batch_columns("saved", "saved of the live peak"),
       run_checkpoint_batch,
       {{live_plot("Live bytes at the peak against the batch", "batch"),
         "batch",
         {{"live", ""}},
         [](const report::Row& row) {
           return setting(row, "checkpointed") == "no" ? "keep every layer" : "each layer checkpointed";
         }}}},
      {"accumulation",
       "Gradient accumulation",
       "How many bytes does a batch need in micro-batches, and how much time?",
       "<i>k</i> micro-batches keep the activations of <i>b</i>/<i>k</i> samples: when backward begins, exactly "
       "1/<i>k</i> of the bytes of the whole batch. State and gradients do not shrink, so the peak falls towards "
       "them; gradients live during every forward but the first.",
       batch_columns("share", "of the live peak of one batch"),
       run_accumulation,
       {{live_plot("Live bytes at the peak against the micro-batches", "micro-batches"),
         "micro_batches",
         {{"live", "live bytes at the peak"}, {"predicted", "kept when backward begins"}},
         {}}}},
      {"sharing",
       "Shared kernels",
       "How much memory does a network save if its convolutions share a third of the parameters?",
       "a basis of <i>r</i> kernels for <i>L</i> convolutions of <i>in</i> to <i>out</i> channels costs <i>r out "
       "k</i><sup>2</sup> + <i>L in r</i> numbers instead of <i>L in out k</i><sup>2</sup>. Weights, gradients and "
       "moments shrink with it. Activations do not, and the expanded kernels are added. Rows of networks show "
       "weights, statistics and Adam's moments; rows of convolutions show the weights.",
       {{"parameters", "parameters", Unit::plain, 0},
        {"of_own", "of those with own kernels", Unit::percent, 1},
        {"kept", "kept for backward", Unit::bytes},
        {"live", "live bytes at the step's peak", Unit::bytes},
        {"peak", "peak of the step", Unit::bytes},
        {"peak_measured", "the same, measured", Unit::bytes},
        {"ms_per_step", "ms per step", Unit::milliseconds, 1}},
       run_sharing},
      {"rules-of-thumb",
       "Which batch fits on which card",
       "What is the largest batch of BERT-base in 12 GiB, and of ViT-Large in 40 and 48 GiB?",
       "plain: everything is kept, the arena places blocks on demand. Planned: the smallest plan of the planner at "
       "that batch, for models over tokens also with the chunked head. All are dry runs of AdamW in f32 "
       "on the cpu's kernels: the batch fits, to the byte, and one more sample does not. Memory that a card reserves "
       "is not counted.",
       {{"batch", "largest batch", Unit::plain, 0},
        {"next_peak", "peak with one more", Unit::bytes},
        {"time_overhead", "time over keeping everything", Unit::percent, 1},
        {"probes", "batches tried", Unit::plain, 0}},
       run_rules_of_thumb},
      {"long-sequences",
       "How long a sequence may be",
       "How long a sequence does each technique allow?",
       "A layer keeps <i>e s (6 h + 2 g D + 3 f)</i> bytes for a sequence of <i>s</i>, in tiles <i>3 e s f</i> "
       "less, as a recomputed segment <i>e s h</i>; logits are <i>e s V</i>. Attention is tiled in all rows. A step "
       "of each length fits the budget, to the byte, and one more token does not. The large models "
       "are dry runs of AdamW in bf16 with f32 masters on a GPU; the small one trains two steps at its longest length.",
       {{"sequence", "longest sequence", Unit::plain, 0},
        {"next_peak", "peak with one more token", Unit::bytes},
        {"time_overhead", "time over keeping everything", Unit::percent, 1},
        {"probes", "lengths tried", Unit::plain, 0}},
       run_long_sequences},
      {"llama",
       "Llama and Qwen in every form",
       "Does the dry run predict current models to the byte, in every way of training and using them?",
       "Seven models of the family with two layers and a small width, their heads, shared keys and gated layers in "
       "proportion, train two steps and evaluate: both builds, two dtypes, a window of attention, heads and "
       "feed-forward layers in tiles, budgets, policies, optimizers, adapters over bases in four forms; then they "
       "write tokens. predicted: a dry run; measured: bytes that the arena committed.",
       {{"loss_last", "last loss", Unit::plain, 3}, {"validation_loss", "validation loss", Unit::plain, 3}},
       run_llama},
      {"overhead",
       "What a budget costs in time",
       "Does a budget cost as much time as the planner predicts?",
       "time of a plan: forward, backward and re-runs of all operators by a cost model, which is the roofline "
       "corrected by steps of a smaller batch. Where the machine has room, steps of the plan and steps that keep "
       "everything alternate in one process, whose predicted bytes are those of both.",
       {{"predicted_overhead", "more time, predicted", Unit::percent, 1},
        {"measured_overhead", "more time, measured", Unit::percent, 1},
        {"ms_per_step", "forward and backward, ms", Unit::milliseconds, 1}},
       run_overhead},
      {"monet",
       "MONeT's table: five nets in six budgets each",
       "How much time do the budgets of MONeT's table cost, and how far is that from the least possible?",
       "Shah et al. 2021 (arXiv:2010.14501): GiB are PyTorch's max_memory_allocated in steps of forward and backward "
       "without an optimizer, so parameters, input, activations, gradients and cuDNN's workspaces; its GoogLeNet has "
       "auxiliary heads, and PyTorch keeps pools' indices in 8 bytes. Here GiB are bytes that the arena commits in the "
       "same steps with a stateless update, for the kernels of the cpu: at the same share of keeping everything, "
       "which is fewer bytes than PyTorch's, and in the same GiB. Times are a roofline of the paper's card (P100), "
       "relative to keeping everything. Published times are relative to PyTorch's step, whose ReLUs are separate "
       "operators, so here times are relative to such a step, too; below 0 they had other convolution kernels. Nets "
       "without batch norm may run in micro-batches. Rows at small batches also run.",
       {{"share", "of keeping everything", Unit::percent, 1},
        {"everything", "keeping everything", Unit::bytes},
        {"published", "published", Unit::percent, 2},
        {"overhead", "more time at that share", Unit::percent, 2},
        {"parts", "in micro-batches", Unit::plain, 0},
        {"least", "no plan in these bytes takes less than", Unit::percent, 2},
        {"gap", "gap", Unit::percent, 2},
        {"overhead_in_gib", "more time in the published GiB", Unit::percent, 2},
        {"least_in_gib", "no plan in these GiB takes less than", Unit::percent, 2},
        {"over_separate", "more time in the published GiB than with separate ReLUs", Unit::percent, 2},
        {"parts_in_gib", "in micro-batches there", Unit::plain, 0},
        {"ms", "processor ms of planning so far", Unit::plain, 0}},
       run_monet,
       {{{"share",
          "More time against the share of the bytes",
          "Lines: plans here; dashed: published. The share is that of keeping everything in each framework.",
          {"of the bytes of keeping everything", Unit::percent},
          {"more time", Unit::percent},
          {}},
         "share",
         {{"overhead", ""}, {"published", ", published", Role::theory}},
         [](const report::Row& row) -> std::optional<std::string> {
           if (!value(row, "ms")) return std::nullopt;
           return setting(row, "net");
         }}}},
      {"hiremate",
       "HiRemate's claim: 50 to 70 % fewer bytes for 10 to 15 % more time",
       "How much time do 50 and 70 % fewer bytes cost, and how long does planning take?",
       "Gusak et al. 2025 (PMLR 267): 10 to 15 % on V100 and RTX 8000, with integer programs for parts of a graph, "
       "which take hours for large ones. Here shares are of the bytes that the arena commits when everything is kept, "
       "in steps with a stateless update, and times are a roofline of a V100. The sizes are ours. Rows at small "
       "batches also run.",
       {{"parameters", "parameters", Unit::plain, 0},
        {"operators", "operators of a forward", Unit::plain, 0},
        {"everything", "keeping everything", Unit::bytes},
        {"published", "published", Unit::percent, 0},
        {"overhead", "more time", Unit::percent, 2},
        {"least", "no plan in these bytes takes less than", Unit::percent, 2},
        {"gap", "gap", Unit::percent, 2},
        {"ms", "processor ms of planning so far", Unit::plain, 0}},
       run_hiremate},
      {"placement",
       "Planned offsets against an allocator",
       "How much of the arena's height is holes, and how much of it do planned offsets remove?",
       "no placement is lower than the load, the largest sum of live bytes. Predicted: what the arena commits in a "
       "dry run of three steps with placed blocks, in whole granules; measured: the same in the real run.",
       {{"load", "load, all", Unit::bytes},
        {"dynamic_height", "dynamic height", Unit::bytes},
        {"placed_height", "placed height", Unit::bytes},
        {"dynamic_ratio", "dynamic / load", Unit::plain, 4},
        {"placed_ratio", "placed / load", Unit::plain, 4},
        {"buffers", "blocks of a step", Unit::plain, 0},
        {"step_load", "load of a step", Unit::bytes},
        {"step_height", "height of its placement", Unit::bytes},
        {"step_ratio", "height / load of a step", Unit::plain, 5},
        {"ms", "placed in ms", Unit::milliseconds, 1},
        {"deviations", "deviations", Unit::plain, 0}},
       run_placement,
       {{{"height",
          "Height of the arena over the load",
          "One point per row of the table, in order. At 1 no byte is lost to holes.",
          {"row"},
          {"height / load", Unit::plain, Scale::linear, false},
          {}},
         "",
         {{"dynamic_ratio", "dynamic arena"}, {"placed_ratio", "placed arena"}},
         {}}}},
      {"fragmentation",
       "Holes: trimming and compaction",
       "How many bytes do emptying the cache and compaction give back, and when?",
       "<i>n</i> blocks of <i>s</i> bytes take <i>n s</i> rounded up to granules of <i>g</i>. Freeing a block gives "
       "no page back. Trimming gives back the granules that no block touches: none if the holes are smaller than "
       "a granule. After compaction the blocks take (<i>n</i> / 2) <i>s</i>, rounded up.",
       {{"live", "live bytes", Unit::bytes},
        {"largest", "largest request that fits", Unit::bytes},
        {"moved", "bytes moved", Unit::bytes}},
       run_fragmentation},
      {"distributed", "Training on several ranks",
       "Does every rank need the predicted bytes, and do all ranks together have the bits of one?",
       "N ranks with M micro-batches each make the steps of one rank with N M micro-batches: every sum has the same "
       "order. So the last checkpoint is the same file, byte by byte. A dry run of one rank predicts its bytes. "
       "Figures are sums over the ranks; the figures of each rank are compared, too.",
       rank_columns(), run_distributed},
      {"distributed-parts", "Blocks in shards over groups of ranks",
       "Does every rank of a group need the predicted bytes, and does the group have the losses of one rank?",
       "One rank that computes all shards of each block adds up their results in order; t ranks with one shard each "
       "add in the same order. So losses have the same bits on any number of ranks. A dry run of one rank predicts "
       "its bytes. Figures are sums over the ranks; the figures of each rank are compared, too.",
       rank_columns(), run_distributed_parts},
      {"distributed-layouts", "One model in every layout over ranks",
       "Does every rank of every layout need the predicted bytes, and do all have the losses of one rank?",
       "The numbers of shards and stages belong to the arithmetic: one rank that has all of them adds in the order of "
       "several ranks. How ranks divide the batch, and the stage of ZeRO, change no bit. A dry run of one rank "
       "predicts its bytes. Figures are sums over the ranks; the figures of each rank are compared, too.",
       rank_columns(), run_distributed_layouts},
      {"distributed-activations",
       "Activations of Llamas on t ranks, compared with 34 s b h L / t",
       "How many bytes does a rank keep for backward, and which does the rule of thumb leave out?",
       "Curves of Llama's activations are often drawn as 34 s b h L / t bytes, which a GPT with GELU, dropout and "
       "tiled attention keeps in its L layers at 2 bytes a number (Korthikanti et al. 2022). A Llama has fewer "
       "heads of keys, a gated layer of another width and no masks, and also keeps statistics, its logits and the "
       "head's input. Closed form and dry run, one sample, bf16, sequence parallelism with t > 1; rank 0.",
       {{"rule", "34 s b h L / t", Unit::bytes},
        {"logits", "logits", Unit::bytes},
        {"ratio", "dry run over the rule", Unit::plain, 3}},
       run_distributed_activations},
      {"distributed-zero",
       "Model state under ZeRO",
       "How many bytes do parameters, gradients and optimizer state take on each rank, for up to 10^12 parameters?",
       "Rajbhandari et al. 2020 (arXiv:1910.02054), table 1: with 2 bytes of parameter, 2 of gradient and 12 of "
       "state per parameter a rank has 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N in stages 0 to 3. P / N are "
       "the elements of the rank's shards, which are whole grains of 4,096; norms' parameters are f32: 4 + 4 + 8. "
       "Dry runs of rank 0.",
       {{"parameters", "parameters", Unit::plain, 0}, {"equal_share", "by P / N", Unit::bytes}},
       run_distributed_zero},
      {"eight-bits",
       "Saved tensors and optimizer state in fewer bits",
       "How many bytes do 16 and 8 bits save, and how do they change gradients and the loss?",
       "Saved tensors: 2 bytes per value in bf16, 1 + 4 / 64 in 8 bits. State of Adam: 8 bytes per parameter in "
       "f32, 4 in bf16, 2 + 8 / 256 in 8 bits; tensors of fewer than 4096 elements stay in f32. Gradients are of one "
       "batch after the training of the first row; the cosine is the least of all parameters. Live bytes count "
       "blocks in their requested sizes; packed bytes are counted before packing.",
       {{"loss_last", "last loss", Unit::plain, 4},
        {"validation_loss", "validation loss", Unit::plain, 4},
        {"validation_change", "change", Unit::percent, 2},
        {"gradient_error", "gradient error", Unit::percent, 2},
        {"least_cosine", "least cosine", Unit::plain, 5},
        {"live_bytes", "live at most", Unit::bytes},
        {"packed_bytes", "packed per step", Unit::bytes},
        {"state_bytes", "optimizer state", Unit::bytes},
        {"state_per_parameter", "bytes of it per parameter", Unit::plain, 3}},
       run_eight_bits},
      {"precision",
       "Every precision policy",
       "How many bytes does a policy commit, which loss does it reach, and how long is a step?",
       "predicted: a dry run of the training; measured: bytes that the arena committed in training, in whole pages; "
       "one seed. Live: the most live bytes in a step, by the dry run; bars show them by category, precision-bytes "
       "compares them with formulas. Times are processor milliseconds of a step on one thread of this machine, the "
       "least of several, all rows in turn.",
       {{"live", "live at most", Unit::bytes},
        {"saving", "less than O0", Unit::percent, 1},
        {"loss_last", "last loss", Unit::plain, 4},
        {"validation_loss", "validation loss", Unit::plain, 4},
        {"validation_change", "change", Unit::percent, 2},
        {"skipped", "steps skipped", Unit::plain, 0},
        {"ms_per_step", "processor ms per step", Unit::milliseconds, 1},
        {"time_change", "more time", Unit::percent, 0}},
       run_precision},
      {"precision-bytes",
       "Every precision policy, category by category",
       "Which category do the bytes of a step belong to, under every policy?",
       "The most bytes of each category at any moment of two steps: parameters and optimizer state from the first "
       "update on, gradients when backward ends, activations when it begins. Closed formulas give parameters, "
       "gradients, state, kept activations and the batch, but not temporaries, workspaces and packed activations. "
       "The last columns are the category's bytes at the peak of all live bytes.",
       {{"at_peak", "at the peak, predicted", Unit::bytes}, {"at_peak_measured", "at the peak, measured", Unit::bytes}},
       run_precision_bytes},
      {"precision-state",
       "What a parameter costs under every policy",
       "How many bytes do master copies cost, compared with rounding, stochastic rounding and Kahan summation?",
       "Parameters, gradients and optimizer state, all of which exist during the update. Per weight with Adam: "
       "4 + 4 + 8 in f32; 2 + 2 + 8, and 4 for a master copy or 2 for Kahan's compensation; 2 + 2 + 2 (1 + 4 / "
       "256) with 8-bit state, and 4 more with master copies. Norms' parameters are f32 under policies with master "
       "copies.",
       {{"per_parameter", "bytes per parameter", Unit::plain, 3},
        {"parameter", "parameters", Unit::bytes},
        {"gradient", "gradients", Unit::bytes},
        {"optimizer_bytes", "optimizer", Unit::bytes}},
       run_precision_state},
      {"precision-encoder",
       "An encoder in half precision",
       "Does O2 make BERT 40 % smaller and 15 % faster?",
       "Half precision can halve only the activations at the peak; a weight with its state takes 16 bytes under O2 as "
       "in f32, and 2 more before its gradient exists. Theory of the saving: weights, optimizer state, batch and "
       "kept activations when backward begins, by closed formulas. Savings are of live bytes; committed bytes are "
       "rounded to whole pages. Times are processor milliseconds of a step on one thread of this machine, the least "
       "of several, the policies in turn.",
       {{"activation_share", "activations and temporaries in the peak", Unit::percent, 1},
        {"saving", "less than O0", Unit::percent, 1},
        {"saving_theory", "by theory", Unit::percent, 1},
        {"validation_loss", "validation loss", Unit::plain, 4},
        {"validation_change", "change", Unit::percent, 2},
        {"ms_per_step", "processor ms per step", Unit::milliseconds, 1},
        {"faster", "faster than O0", Unit::percent, 0}},
       run_precision_encoder},
      {"precision-int8",
       "Inference in 8 bits",
       "Is a net in 8 bits 4 times smaller, and does it keep 98 % of its accuracy?",
       "One byte per weight and per value; f32 scales and i32 biases for each filter. Bytes are for inference of one "
       "batch. Both nets read the same images. Times are processor milliseconds on this machine, the least of "
       "several, both nets in turn.",
       {{"live", "live at most", Unit::bytes},
        {"file_bytes", "file", Unit::bytes},
        {"file_ratio", "times smaller", Unit::plain, 3},
        {"accuracy", "accuracy", Unit::percent, 2},
        {"accuracy_ratio", "of that in f32", Unit::percent, 2},
        {"loss", "loss", Unit::plain, 4},
        {"ms", "processor ms per batch", Unit::milliseconds, 2},
        {"faster", "times as fast", Unit::plain, 2}},
       run_precision_int8},
      {"precision-int8-bytes",
       "Inference in 8 bits, category by category",
       "Which category do the bytes of inference belong to, in f32 and in 8 bits?",
       "The most bytes of each category at any moment of one batch. Parameters have a closed formula: in f32 4 bytes "
       "each, with batch norms and their statistics; in 8 bits batch norms are folded, a weight has one byte, in "
       "panels of whole vectors, and a filter has a scale, a bias and a factor of 4 bytes each. There are no "
       "gradients and no optimizer. Activations are the tensors that only the forward holds.",
       {},
       run_precision_int8_bytes}};
  return list;
}

}  // namespace thimble::bench
