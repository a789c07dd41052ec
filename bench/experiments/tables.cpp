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
           "Activations and temporaries at most during one forward and backward; lines predicted, marks measured.",
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
       "predicted: a dry run of the same program (two steps, an evaluation); measured: what the arena committed "
       "while it trained. Data is generated, so nothing is downloaded.",
       {{"loss_first", "first loss", Unit::plain, 3},
        {"loss_last", "last loss", Unit::plain, 3},
        {"validation_loss", "validation loss", Unit::plain, 3},
        {"accuracy", "accuracy", Unit::percent, 1},
        {"ms_per_step", "ms per step", Unit::milliseconds, 1}},
       run_training},
      {"resnet-batch",
       "ResNet activation bytes against the batch",
       "Is what a ResNet keeps for backward linear in the batch, with the slope that the shapes give?",
       "per image: input + conv outputs + ReLU outputs + pool output + fc input; for ResNet-50 at 224 that is "
       "21,075,968 elements, 4 bytes each. What remains is named: batch-norm statistics (whatever the batch), and "
       "the head's scores.",
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
       "k</i><sup>2</sup>, on one that adds the input as it is none. Batch-norm statistics are named beside it.",
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
       "How many of the bytes that the layers keep for backward can go, at what price in time?",
       "textbook: <i>L</i>(<i>sbh</i>(16<i>e</i> + 2) + (2<i>e</i> + 1)<i>as</i><sup>2</sup><i>b</i> + "
       "16<i>sb</i>); fused: <i>L</i>(16<i>esbh</i> + 4<i>asb</i> + 16<i>sb</i>), with <i>e</i> = 4. Plans run the "
       "fused build with the chunked head, whose gradients are made in its forward; their time is the cost model's, "
       "over keeping everything with the faster of the two heads. The figure is what the layers keep when backward "
       "begins.",
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
       "At the peak of a step, what are the bytes for, and how does the optimizer change that?",
       "with <i>P</i> parameters in f32: weights 4<i>P</i>, gradients 4<i>P</i>, state 0 (SGD), 4<i>P</i> "
       "(momentum), 8<i>P</i> (Adam, AdamW); the rest is activations and temporaries.",
       step_columns(), run_step_peak},
      {"prediction", "Peaks, predicted and measured", "Does a dry run tell the peak of a training run to the byte?",
       "predicted: the height of the arena in a dry run of two steps; measured: the bytes that the arena committed "
       "in the real run, beside the kernel's own count of resident bytes in that mapping.",
       step_columns(), run_prediction},
      {"techniques",
       "Peaks under every technique, predicted and measured",
       "Does the dry run tell the peak to the byte whatever is done to need less?",
       "predicted: a dry run of two steps; measured: the real run. Compared as integers are the bytes that the "
       "arena committed, its height, the live bytes, the load, what is offloaded, and the kernel's count of "
       "resident bytes. A budget is given as a share of the way from the smallest plan to keeping everything; every "
       "technique is what it is called in the library, and <i>average</i> a moving average of the weights that is "
       "kept, or waits during the step in a file, on a GPU in the host's pinned memory.",
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
       "Does a tape that follows a schedule of the literature run, and hold, what its theory says?",
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
       "16<i>sb</i> for each layer that is not, and what is outside of the layers. Each layer a segment of its own: "
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
       "What does a batch need when it is run in micro-batches, and what does that cost?",
       "<i>k</i> micro-batches keep the activations of <i>b</i>/<i>k</i> samples: kept when backward begins is "
       "1/<i>k</i> of that of the batch, as an integer. State and gradients stay as they are, and so the peak falls "
       "towards them; gradients are there during every forward but the first.",
       batch_columns("share", "of the live peak of one batch"),
       run_accumulation,
       {{live_plot("Live bytes at the peak against the micro-batches", "micro-batches"),
         "micro_batches",
         {{"live", "live bytes at the peak"}, {"predicted", "kept when backward begins"}},
         {}}}},
      {"sharing",
       "Shared kernels",
       "How much memory does a network save whose convolutions share a third of the parameters?",
       "a basis of <i>r</i> kernels for <i>L</i> convolutions of <i>in</i> to <i>out</i> channels costs <i>r out "
       "k</i><sup>2</sup> + <i>L in r</i> numbers instead of <i>L in out k</i><sup>2</sup>. Weights, gradients and "
       "moments shrink with it; what is kept for backward does not, and the expanded kernels come on top. Rows of "
       "networks show weights, statistics and Adam's moments; those of convolutions the weights.",
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
       "that batch, also with the chunked head where the model is one over tokens. All are dry runs of AdamW in f32 "
       "on the cpu's kernels: the batch named fits, to the byte, and one more does not. A card keeps some of its "
       "memory for itself; that is not counted.",
       {{"batch", "largest batch", Unit::plain, 0},
        {"next_peak", "peak with one more", Unit::bytes},
        {"time_overhead", "time over keeping everything", Unit::percent, 1},
        {"probes", "batches tried", Unit::plain, 0}},
       run_rules_of_thumb},
      {"long-sequences",
       "How long a sequence may be",
       "Where does each way to need less memory stop, as the sequence grows?",
       "A layer keeps <i>e s (6 h + 2 g D + 3 f)</i> bytes for a sequence of <i>s</i>, in tiles <i>3 e s f</i> "
       "less, under a closed segment <i>e s h</i>; logits are <i>e s V</i>. Attention is tiled in all of them. Each "
       "length is the longest whose step fits the budget to the byte, and one more token does not. The large models "
       "are dry runs of AdamW in bf16 with f32 masters on a GPU; the small one trains two steps at its longest "
       "length.",
       {{"sequence", "longest sequence", Unit::plain, 0},
        {"next_peak", "peak with one more token", Unit::bytes},
        {"time_overhead", "time over keeping everything", Unit::percent, 1},
        {"probes", "lengths tried", Unit::plain, 0}},
       run_long_sequences},
      {"llama",
       "Llama and Qwen in every form",
       "Are today's models predicted to the byte, however they are trained and used?",
       "Seven models of the family with two layers and a small width, their heads, shared keys and gated layers in "
       "proportion, train two steps and evaluate: both builds, two dtypes, a window of attention, heads and "
       "feed-forward layers in tiles, budgets, policies, optimizers, adapters over bases in four forms; then they "
       "write tokens. predicted: a dry run; measured: what the arena committed.",
       {{"loss_last", "last loss", Unit::plain, 3}, {"validation_loss", "validation loss", Unit::plain, 3}},
       run_llama},
      {"overhead",
       "What a budget costs in time",
       "Do steps in a budget take as much longer as the planner says?",
       "time of a plan: forward, backward and re-runs of all operators by a cost model, which is the roofline "
       "corrected by steps of a smaller batch. Where the machine has room, a plan and keeping everything take turns "
       "in one process: its promise is of both",
       {{"predicted_overhead", "more time, predicted", Unit::percent, 1},
        {"measured_overhead", "more time, measured", Unit::percent, 1},
        {"ms_per_step", "forward and backward, ms", Unit::milliseconds, 1}},
       run_overhead},
      {"monet",
       "MONeT's table: five nets in six budgets each",
       "What do the budgets of MONeT's table cost in time, and how far from the least possible is that?",
       "Shah et al. 2021 (arXiv:2010.14501): GiB are PyTorch's max_memory_allocated in steps of forward and backward "
       "without an optimizer, so parameters, input, activations, gradients and cuDNN's workspaces; its GoogLeNet has "
       "auxiliary heads, and PyTorch keeps pools' indices in 8 bytes. Here they are what the arena commits in the same "
       "steps with an update that has no state, for the kernels of the cpu: at the same share of keeping everything, "
       "which is fewer bytes than PyTorch's, and in the same GiB. Times are a roofline of the paper's card (P100), "
       "over "
       "keeping everything; a published one below 0 had other convolution kernels. Nets without batch norm may run "
       "in micro-batches. Rows at small batches run as well.",
       {{"share", "of keeping everything", Unit::percent, 1},
        {"everything", "keeping everything", Unit::bytes},
        {"published", "published", Unit::percent, 2},
        {"overhead", "more time at that share", Unit::percent, 2},
        {"parts", "in micro-batches", Unit::plain, 0},
        {"least", "no plan in these bytes takes less than", Unit::percent, 2},
        {"gap", "gap", Unit::percent, 2},
        {"overhead_in_gib", "more time in the published GiB", Unit::percent, 2},
        {"least_in_gib", "no plan in these GiB takes less than", Unit::percent, 2},
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
       "What do half and 70 % fewer bytes cost in time, and how long does a plan take?",
       "Gusak et al. 2025 (PMLR 267): 10 to 15 % on V100 and RTX 8000, with integer programs for parts of a graph, "
       "which take hours for large ones. Here a share is of what the arena commits when everything is kept, in "
       "steps with an update that has no state, and times are a roofline of a V100. The sizes are ours. Rows at small "
       "batches run as well.",
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
       "How much of the arena's height is holes, and how much is left when a step's blocks are placed?",
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
          "One point per row of the table, in its order. At 1 not a byte is lost to holes.",
          {"row"},
          {"height / load", Unit::plain, Scale::linear, false},
          {}},
         "",
         {{"dynamic_ratio", "dynamic arena"}, {"placed_ratio", "placed arena"}},
         {}}}},
      {"fragmentation",
       "Holes: trimming and compaction",
       "What do emptying the cache and defragmentation give back, and when?",
       "<i>n</i> blocks of <i>s</i> bytes take <i>n s</i> rounded up to granules of <i>g</i>. Freeing a block gives "
       "no page back. Trimming gives back the granules that no block touches: none where the holes are smaller than "
       "a granule. Blocks that were slid together take (<i>n</i> / 2) <i>s</i>, rounded up.",
       {{"live", "live bytes", Unit::bytes},
        {"largest", "largest request that fits", Unit::bytes},
        {"moved", "bytes moved", Unit::bytes}},
       run_fragmentation},
      {"distributed", "Training on several ranks",
       "Has every rank the bytes that were told, and the whole the bits of one rank?",
       "N ranks with M micro-batches each make the steps of one rank with N M of them: every sum is made in the "
       "same order. So the last checkpoint is the same file, byte by byte. What a rank needs is said by a dry run "
       "of that rank alone. Figures are sums over the ranks; each rank's own are compared as well.",
       rank_columns(), run_distributed},
      {"distributed-parts", "Blocks in parts over teams of ranks",
       "Has every rank of a team the bytes that were told, and the whole the losses of one rank?",
       "One rank that computes all parts of each block, one after the other, adds up what they give in their order; "
       "t ranks that have one part each add in the same order. So losses have the same bits, whoever has the parts. "
       "What a rank needs is said by a dry run of that rank alone. Figures are sums over the ranks; each rank's own "
       "are compared as well.",
       rank_columns(), run_distributed_parts},
      {"distributed-layouts", "One model in every layout over ranks",
       "Has every rank of every layout the bytes that were told, and the whole the losses of one rank?",
       "In how many parts and stages work is cut is an attribute of the arithmetic: one rank that has all of them "
       "adds up as many ranks do. Who shares the batch, and what ZeRO shares out, changes no bit. What a rank needs "
       "is said by a dry run of that rank alone. Figures are sums over the ranks; each rank's own are compared as "
       "well.",
       rank_columns(), run_distributed_layouts},
      {"distributed-activations",
       "Activations of Llamas over teams, beside 34 s b h L / t",
       "What does a rank keep for backward, and what does the rule of thumb leave out?",
       "Curves of Llama's activations are often drawn as 34 s b h L / t bytes: what a GPT with GELU, dropout and "
       "tiled attention keeps in its L layers at 2 bytes a number (Korthikanti et al. 2022). A Llama has fewer "
       "heads of keys, a gated layer of another width and no masks, and keeps statistics, its logits and what the "
       "head reads besides. Closed form and dry run, one sample, bf16, the sequence in parts with t > 1; rank 0.",
       {{"rule", "34 s b h L / t", Unit::bytes},
        {"logits", "logits", Unit::bytes},
        {"ratio", "dry run over the rule", Unit::plain, 3}},
       run_distributed_activations},
      {"distributed-zero",
       "Model state under ZeRO",
       "What do parameters, gradients and optimizer state take on each rank of models up to 10^12?",
       "Rajbhandari et al. 2020 (arXiv:1910.02054), table 1: with 2 bytes of parameter, 2 of gradient and 12 of "
       "state per parameter a rank has 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N in stages 0 to 3. P / N are "
       "the elements of the rank's shards, which are whole grains of 4,096; norms' parameters are f32: 4 + 4 + 8. "
       "Dry runs of rank 0.",
       {{"parameters", "parameters", Unit::plain, 0}, {"equal_share", "by P / N", Unit::bytes}},
       run_distributed_zero},
      {"eight-bits",
       "Saved tensors and optimizer state in fewer bits",
       "What do 16 and 8 bits save, and what do they do to gradients and to the loss?",
       "Saved tensors: 2 bytes per value in bf16, 1 + 4 / 64 in 8 bits. State of Adam: 8 bytes per parameter in "
       "f32, 4 in bf16, 2 + 8 / 256 in 8 bits; tensors of fewer than 4096 elements stay in f32. Gradients are those "
       "of one batch after the training of the first row; the cosine is the least of all parameters. Live bytes "
       "count blocks as they were asked for; packed ones are counted before they are packed.",
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
       "What does a policy commit, where does the loss go, and what does a step take?",
       "predicted: a dry run of the training; measured: what the arena committed while it trained, in whole pages, "
       "one seed. Live: the most that is live in a step, by the dry run; a bar has it by category, precision-bytes "
       "beside formulas. The time is this machine's and says nothing of another: processor milliseconds of a step "
       "on one thread, the least of several, all rows in turn.",
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
       "What are the bytes of a step for, under every policy?",
       "The most bytes of a category in two steps, whenever that is: parameters and state of the optimizer from the "
       "first update on, gradients when backward ends, activations when it begins. Closed formulas of parameters, "
       "gradients, state, kept activations and the batch; none for temporaries, workspaces and packed activations. "
       "The last columns are the category's share at the moment when all live bytes together are the most.",
       {{"at_peak", "at the peak, predicted", Unit::bytes}, {"at_peak_measured", "at the peak, measured", Unit::bytes}},
       run_precision_bytes},
      {"precision-state",
       "What a parameter costs under every policy",
       "What do master copies cost beside rounding, stochastic rounding and Kahan's sum?",
       "Parameters, gradients and the optimizer's state, which are all there while it updates. Per weight with "
       "Adam: 4 + 4 + 8 in f32; 2 + 2 + 8 and 4 for a master copy, 2 for what Kahan's sum keeps; 2 + 2 + 2 (1 + 4 / "
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
       "Of the peak, what half precision can halve are activations; a weight with its state takes as much under O2 "
       "as in f32 (16 bytes), and 2 more before its gradient is there. Theory of the saving: weights, state of the "
       "optimizer, batch and kept activations when backward begins, by closed formulas. Savings are of live bytes; "
       "what is committed is rounded to whole pages. Processor milliseconds of a step on one thread, the least of "
       "several, the policies in turn; they are this machine's.",
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
       "One byte for a weight and for a value; f32 scales and i32 biases for each filter. Bytes are those of "
       "inference of one batch. Both nets read the same images, in turn for the time: the least of several, on the "
       "processor's clock, of this machine.",
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
       "What are the bytes of inference for, in f32 and in 8 bits?",
       "The most bytes of a category while a batch passes, whenever that is. Parameters by a closed formula: in f32 "
       "4 bytes each, with batch norms and their statistics; in 8 bits batch norms are folded, a weight has one "
       "byte, in panels of whole vectors, and a filter a scale, a bias and a factor of 4 bytes each. There are no "
       "gradients and no optimizer. Activations are what is held by nothing but the pass.",
       {},
       run_precision_int8_bytes}};
  return list;
}

}  // namespace thimble::bench
