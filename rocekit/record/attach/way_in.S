/*
 * The way into a running program: code that stands for a while in the place of its verbs functions.
 *
 * A call comes in as to the function itself. The first one loads the interposer and has it attach, on a stack of its
 * own, with errno and all arguments kept; every call then goes on to the function that stands in the object by then.
 * Nothing here waits. r11: the entry's row {place, own, entry, door}; the door: rocekit/record/way_in.py.
 */
        .text
entry:                          /* one for each place; the two addresses are filled in */
        endbr64
        movabs $0x1122334455667788, %r11
        movabs $0x1122334455667788, %rax
        jmp *%rax
        .balign 32, 0xcc
common:
        push %rdi
        push %rsi
        push %rdx
        push %rcx
        push %r8
        push %r9
        push %r11
        mov 24(%r11), %r10
        xor %eax, %eax
        mov $1, %ecx
        lock cmpxchg %ecx, 8(%r10)
        jne on
        push %rbx
        push %r12
        push %r13
        mov %r10, %rbx
        mov %rsp, %r13
        mov 40(%rbx), %rsp
        call *48(%rbx)          /* __errno_location */
        mov %rax, %r12
        mov (%rax), %eax
        push %rax
        push %rax
        mov 16(%rbx), %rax      /* what to call, if the library is loaded */
        test %rax, %rax
        jnz ready
        mov 80(%rbx), %rdi
        mov $2, %esi            /* RTLD_NOW */
        call *56(%rbx)          /* dlopen */
        test %rax, %rax
        jz failed
        mov %rax, %rdi
        mov 88(%rbx), %rsi
        call *64(%rbx)          /* dlsym */
        test %rax, %rax
        jz failed
ready:
        mov 96(%rbx), %rdi
        call *%rax
        mov %rax, 24(%rbx)
        mov $2, %ecx
        jmp done
failed:
        call *72(%rbx)          /* dlerror */
        mov %rax, 32(%rbx)
        mov $3, %ecx
done:
        pop %rax
        mov %eax, (%r12)
        mov %r13, %rsp
        pop %r13
        pop %r12
        mov %ecx, 8(%rbx)
        pop %rbx
on:
        pop %r11
        pop %r9
        pop %r8
        pop %rcx
        pop %rdx
        pop %rsi
        pop %rdi
        mov (%r11), %rax
        mov (%rax), %rax
        cmp 16(%r11), %rax
        jne go
        mov 8(%r11), %rax
go:
        jmp *%rax
        .balign 32, 0xcc
swap:                           /* run alone, in a thread that is stopped: *rdi from rax to rcx */
        lock cmpxchg %rcx, (%rdi)
        .balign 32, 0xcc
